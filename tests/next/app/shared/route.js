import { limit, store } from "../../limits.js";

const now = () => process.hrtime.bigint();
const limited = limit(async (request, asked) => new Response(`${process.pid} ${asked} ${now()}`), {
  limiter: store.limiter("shared", "10/500ms"),
});

// Returns when it was admitted: after the first time and before the second, on the clock that all processes of a machine share.
export const GET = (request) => limited(request, now());
