// One process of a cluster that limits requests: server.mjs URL LIMIT WINDOW. It responds with the times just before and after the
// decision, in ns on the clock that all processes of a machine share.

import express from "express";
import { RateLimiter, Store } from "workglow-limit";
import { limitRequests } from "workglow-limit/express";

const [url, maxExecutions, seconds] = process.argv.slice(2);
const store = new Store(url, { timeout: "60s" });
const limiter = new RateLimiter(store, "api", { maxExecutions: Number(maxExecutions), windowSizeInSeconds: Number(seconds) });
const [wide, key] = [new RateLimiter(store, "wide", { maxExecutions: 4096, windowSizeInSeconds: 3600 }), () => "k"];

const app = express();
app.use((request, response, next) => next(void (response.locals.asked = process.hrtime.bigint())));
app.use(
  limitRequests({
    limits: [
      { limiter, key },
      { limiter: wide, key },
    ],
  }),
);
app.get("/", (_request, response) => response.send(`${process.pid} ${response.locals.asked} ${process.hrtime.bigint()}`));
app.listen(0, "127.0.0.1");
