// Koa's types accept ours.

import Koa from "koa";
import { RateLimiter, Store } from "workglow-limit";
import { type Limited, limitRequests } from "workglow-limit/koa";

const limiter = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
const gate = limitRequests({
  limits: [{ limiter, key: (context) => context.ip, weight: (context) => Number(context.query.n) }],
  forwardedHeader: "CF-Connecting-IP",
  trustedProxies: ["10.0.0.0/8"],
  onLimited: (context, { retryAfter }: Limited) => (context.path === "/" ? { retryAfter } : context),
});
const app = new Koa();
app.use(gate);
app.use(gate.route({ limiter, name: "route", key: "user" }));
// @ts-expect-error: no such header
limitRequests({ forwardedHeader: "X-Client-IP" });
