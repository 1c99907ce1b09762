import { NextResponse } from "next/server";
import { limitRequests } from "workglow-limit/next";
import { store } from "../../limits.js";

const limit = limitRequests({ limits: [{ limiter: store.limiter("wide", "9/1h") }] });

export const GET = limit(async (request) => NextResponse.json({ q: request.nextUrl.searchParams.get("q") }), {
  limiter: store.limiter("narrow", "3/1h"),
  weight: (request) => Number(request.nextUrl.searchParams.get("q")),
});
