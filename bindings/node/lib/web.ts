// Helpers for frameworks with the standard `Request` and `Response`.

import type { UnderlyingSource } from "node:stream/web";
import { Body, type Entry, type Limited, type Unavailable } from "./serving.js";

/** Adds headers to a response, except those that it already has. */
export function withHeaders(response: Response, headers: Readonly<Record<string, string>>): Response {
  const missing = Object.entries(headers).filter(([name]) => !response.headers.has(name));
  if (missing.length === 0) return response;
  try {
    for (const [name, value] of missing) response.headers.set(name, value);
    return response;
  } catch {
    // The headers of a redirect, or of a fetched response, cannot be changed.
    const all = new Headers(response.headers);
    for (const [name, value] of missing) all.set(name, value);
    return copy(response, response.body, all);
  }
}

function copy({ status, statusText }: Response, body: ReadableStream | null, headers: Headers): Response {
  return new Response(body, { status, statusText, headers });
}

/** Ends the permits of a request when its client disconnects. */
export function endWithSignal({ signal }: Request, entry: Entry): void {
  const left = () => void entry.end("left");
  if (signal.aborted) left();
  else signal.addEventListener("abort", left, { once: true });
}

/** Returns a response that ends its request's permits when its last byte is read. */
export function whenOver(response: Response, entry: Entry): Response {
  const over = () => void entry.end(response.status);
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

/** Returns a response for a client that has disconnected. */
export const forNobody = (): Response => new Response(null, { status: 408 });

/** Returns the response of a refusal. */
export function refusal({ status, headers }: Limited | Unavailable, reply: Body | Response): Response {
  if (!(reply instanceof Body)) return withHeaders(reply, headers);
  return new Response(reply.content, { status, headers: { ...headers, "Content-Type": reply.type } });
}

export const isResponse = (reply: unknown): reply is Response => reply instanceof Response;
