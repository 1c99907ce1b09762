// The package in the edge runtime of Next.js.

throw new Error(
  "workglow-limit loads native code, which the edge runtime of Next.js does not support. Limit requests in route handlers without " +
    '`runtime = "edge"`, or in proxy.js: middleware.js runs in the edge runtime',
);
