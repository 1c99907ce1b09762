import { NextResponse } from "next/server";
import { limit, store } from "./limits.js";

export const proxy = limit(async () => NextResponse.next(), { limiter: store.limiter("proxy", "1/1h"), key: "header:X-API-Key" });
export const config = { matcher: "/proxied" };
