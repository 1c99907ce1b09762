// The package where Next.js runs code on its edge.

throw new Error(
  "workglow-limit loads native code, and the edge of Next.js loads none. Limit requests in route handlers without " +
    '`runtime = "edge"`, or in proxy.js: middleware.js runs on the edge',
);
