// The package needs no configuration, except where Next copies files: it does not detect that native code is loaded.
export default {
  cacheComponents: true,
  partialPrefetching: true,
  output: "standalone",
  outputFileTracingIncludes: { "/*": ["node_modules/workglow-limit/**/*", "node_modules/@workglow-limit/**/*"] },
};
