import { limit, store } from "../../../limits.js";

export const GET = limit(async (request, { params }) => Response.json(await params), {
  limiter: store.limiter("tenant", "1/1h"),
  key: (request) => request.nextUrl.pathname.split("/").at(-1),
});
