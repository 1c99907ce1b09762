import { limit, store } from "../../limits.js";

// By nothing of the request, and nothing of it is read: it must not be taken for a page that never changes.
export const GET = limit(async () => new Response("plain"), { limiter: store.limiter("plain", "1/1h") });
