// What `Request` and `Response` of the platform share, in the frameworks that use them.

import type { UnderlyingSource } from "node:stream/web";
import { Body, type Entry, type Limited } from "./serving.js";

/** A response with more headers, which those that it has win against. */
export function withHeaders(response: Response, headers: Readonly<Record<string, string>>): Response {
  const missing = Object.entries(headers).filter(([name]) => !response.headers.has(name));
  if (missing.length === 0) return response;
  try {
    for (const [name, value] of missing) response.headers.set(name, value);
    return response;
  } catch {
    // Those of a redirect, or of what was fetched, cannot be changed.
    const all = new Headers(response.headers);
    for (const [name, value] of missing) all.set(name, value);
    return copy(response, response.body, all);
  }
}

function copy({ status, statusText }: Response, body: ReadableStream | null, headers: Headers): Response {
  return new Response(body, { status, statusText, headers });
}

/** Ends what a request has taken when its client has left. */
export function endWithSignal({ signal }: Request, entry: Entry): void {
  const left = () => void entry.end("left");
  if (signal.aborted) left();
  else signal.addEventListener("abort", left, { once: true });
}

/** A response whose last byte, once it is read, ends what its request has taken. */
export function whenOver(response: Response, entry: Entry): Response {
  const over = () => void entry.end(response.status < 400 ? "successful" : "failed");
  const left = () => void entry.end("left");
  if (response.body === null) {
    over();
    return response;
  }
  const reader: ReadableStreamDefaultReader = response.body.getReader();
  const source: UnderlyingSource = {
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) return controller.enqueue(value);
        controller.close();
        over();
      } catch (error) {
        left();
        throw error;
      }
    },
    cancel(reason) {
      left();
      return reader.cancel(reason);
    },
  };
  return copy(response, new ReadableStream(source, { highWaterMark: 0 }), response.headers);
}

/** What nobody reads: for clients that have left. */
export const forNobody = (): Response => new Response(null, { status: 408 });

/** A refusal. */
export function refusal({ status, headers }: Limited, reply: Body | Response): Response {
  if (!(reply instanceof Body)) return withHeaders(reply, headers);
  return new Response(reply.content, { status, headers: { ...headers, "Content-Type": reply.type } });
}

export const isResponse = (reply: unknown): reply is Response => reply instanceof Response;
