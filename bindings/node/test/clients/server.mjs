// A server that records the requests that arrive.

import { once } from "node:events";
import http from "node:http";
import net from "node:net";

/** Serves on a free port until the test ends. `answer(request, response, body)` responds; requests are recorded in `arrivals`. */
export async function serve(t, answer = (request, response) => response.end("fine")) {
  const arrivals = [];
  const server = http.createServer(async (request, response) => {
    const at = process.hrtime.bigint();
    let body = "";
    for await (const chunk of request.setEncoding("utf8")) body += chunk;
    arrivals.push({ at, method: request.method, path: request.url, headers: request.headers, body });
    await answer(request, response, body);
  });
  server.keepAliveTimeout = 0; // Otherwise it may close a connection on which a request is on its way.
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, port: server.address().port, arrivals, close: () => server.close() };
}

/** Returns a port on which no server listens: that of a client, so nobody else can get it until the test ends. */
export async function deadPort(t) {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = net.connect(server.address().port, "127.0.0.1");
  const [[accepted]] = await Promise.all([once(server, "connection"), once(client, "connect")]);
  t.after(() => [client, accepted].forEach((socket) => socket.destroy()));
  server.close();
  return client.localPort;
}

/**
 * Returns the most starts that surely lie in one window, in ns. Each lies somewhere in [a, b], after the client asked and before the
 * server received it. Only starts whose whole interval is in the window count.
 */
export function mostInAnyWindow(starts, window) {
  const sorted = starts.toSorted((x, y) => (x.b < y.b ? -1 : 1));
  let most = 0;
  for (const { a } of starts) most = Math.max(most, sorted.filter((other) => other.a >= a && other.b < a + window).length);
  return most;
}

const words = ["One", " two", " three", " four"];

/** Responds as the APIs of OpenAI and Anthropic do: with JSON, or a stream, gzipped if the path says so. `hold` keeps a stream open. */
export function model(hold = async () => {}) {
  return async (request, response, body) => {
    const { stream, stream_options } = JSON.parse(body || "{}");
    const isAnthropic = request.url.startsWith("/v1/messages");
    const of = isAnthropic ? anthropic : openai;
    if (!stream) {
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(of.whole()));
      return;
    }
    response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" });
    const events = of.events(stream_options?.include_usage === true);
    for (const [at, event] of events.entries()) {
      if (at === events.length - 2) await hold(request, response);
      if (response.destroyed) return;
      response.write(event);
      await new Promise((resolve) => setImmediate(resolve));
    }
    response.end();
  };
}

const openai = {
  whole: () => ({
    id: "chatcmpl-1",
    object: "chat.completion",
    created: 1,
    model: "m",
    choices: [{ index: 0, message: { role: "assistant", content: words.join("") }, finish_reason: "stop" }],
    usage: { prompt_tokens: 7, completion_tokens: 4, total_tokens: 11 },
  }),
  events(includeUsage) {
    const chunk = (rest) => ({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "m", usage: null, ...rest });
    const deltas = words.map((content) => chunk({ choices: [{ index: 0, delta: { content }, finish_reason: null }] }));
    const usage = { prompt_tokens: 7, completion_tokens: 4, total_tokens: 11 };
    const all = [...deltas, ...(includeUsage ? [chunk({ choices: [], usage })] : [])];
    return [...all.map((data) => `data: ${JSON.stringify(data)}\n\n`), "data: [DONE]\n\n"];
  },
};

const anthropic = {
  whole: () => ({
    id: "msg_1",
    type: "message",
    role: "assistant",
    model: "m",
    content: [{ type: "text", text: words.join("") }],
    stop_reason: "end_turn",
    stop_sequence: null,
    usage: { input_tokens: 9, output_tokens: 4, cache_creation_input_tokens: 2, cache_read_input_tokens: 500 },
  }),
  events() {
    const usage = { input_tokens: 9, output_tokens: 1, cache_creation_input_tokens: 2, cache_read_input_tokens: 500 };
    const message = { ...anthropic.whole(), content: [], stop_reason: null, usage };
    const events = [
      { type: "message_start", message },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "ping" },
      ...words.map((text) => ({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text } })),
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: "end_turn", stop_sequence: null }, usage: { output_tokens: 4 } },
      { type: "message_stop" },
    ];
    return events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  },
};
