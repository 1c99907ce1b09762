// Nothing is said of the package, but where Next copies what it sees: it does not see that native code is loaded.
export default {
  cacheComponents: true,
  partialPrefetching: true,
  output: "standalone",
  outputFileTracingIncludes: { "/*": ["node_modules/workglow-limit/**/*", "node_modules/@workglow-limit/**/*"] },
};
