import { limit, store } from "../../limits.js";

let end;

// A stream that lasts until a POST ends it.
export const GET = limit(
  async () => {
    const ended = new Promise((resolve) => (end = resolve));
    async function* body() {
      yield new TextEncoder().encode("first ");
      await ended;
      yield new TextEncoder().encode("last");
    }
    return new Response(ReadableStream.from(body()));
  },
  { limiter: store.limiter("running", "1 concurrent") },
);

export async function POST() {
  end();
  return new Response(null, { status: 204 });
}
