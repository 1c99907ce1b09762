import { limit, store } from "../../limits.js";

// No key, and the handler reads nothing of the request: Next must not cache its response at build time.
export const GET = limit(async () => new Response("plain"), { limiter: store.limiter("plain", "1/1h") });
