import { limit, store } from "../../limits.js";

export const GET = limit(async () => new Response("hello"), { limiter: store.limiter("address", "2/1h"), key: "address" });
export const POST = limit(async (request) => Response.json(await request.json()), {
  limiter: store.limiter("header", "2/1h"),
  key: "header:X-API-Key",
});
