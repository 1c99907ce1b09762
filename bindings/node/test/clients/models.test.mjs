// The SDKs of OpenAI and Anthropic with a limited `fetch`, against a server with the same responses as theirs.

import Anthropic from "@anthropic-ai/sdk";
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { Store } from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";
import { settle } from "../helpers.mjs";
import { model, serve } from "./server.mjs";

const messages = [{ role: "user", content: "x".repeat(36) }]; // With "user": 10 tokens. The model's name is one more.
const content = "One two three four";

const sdks = {
  openai: {
    make: (options) => new OpenAI(options),
    path: "/v1",
    whole: async (client) => (await client.chat.completions.create({ model: "m", messages, max_tokens: 100 })).choices[0].message.content,
    stream: (client) =>
      client.chat.completions.create({ model: "m", messages, max_tokens: 100, stream: true, stream_options: { include_usage: true } }),
    wordOf: (event) => event.choices[0]?.delta.content ?? "",
    used: 11,
    known: 111, // Only the last event states it.
  },
  anthropic: {
    make: (options) => new Anthropic(options),
    path: "",
    whole: async (client) => (await client.messages.create({ model: "m", messages, max_tokens: 100 })).content[0].text,
    stream: (client) => client.messages.create({ model: "m", messages, max_tokens: 100, stream: true }),
    wordOf: (event) => event.delta?.text ?? "",
    used: 15,
    known: 12, // The first event states the input tokens.
  },
};

const left = (limiter) => limiter.peek({ weight: 0 }).remaining;

async function until(holds) {
  while (!holds()) await settle();
}

/** Makes an SDK with limits of its own, and a server. */
async function set(t, { make, path }, answer, options = {}) {
  const { url, arrivals } = await serve(t, answer);
  const store = new Store("memory:");
  const llm = store.limiter("llm", "requests: 500/1m + tokens: 1000/1m + 2 concurrent");
  const { tokens, concurrency: limiter } = llm.parts;
  const fetch = limitFetch(llm, { tokens: "tokens", ...options });
  return { client: make({ baseURL: url + path, apiKey: "key", maxRetries: 0, fetch }), limiter, tokens, arrivals };
}

for (const [name, sdk] of Object.entries(sdks)) {
  test(`${name}: a response settles the used tokens`, async (t) => {
    const { client, limiter, tokens } = await set(t, sdk, model());
    assert.equal(await sdk.whole(client), content);
    await until(() => left(tokens) === 1000 - sdk.used);
    assert.equal(left(limiter), 2);
  });

  test(`${name}: a stream holds its permit and its estimate until it ends`, async (t) => {
    let goOn;
    const isRead = new Promise((resolve) => (goOn = resolve));
    const { client, limiter, tokens } = await set(
      t,
      sdk,
      model(() => isRead),
    );
    const stream = await sdk.stream(client);
    assert.deepEqual([left(limiter), left(tokens)], [1, 889]);
    let said = "";
    for await (const event of stream) {
      said += sdk.wordOf(event);
      if (sdk.wordOf(event) === "") continue;
      assert.deepEqual([left(limiter), left(tokens)], [1, 889]);
      if (said === content) goOn();
    }
    assert.equal(said, content);
    await until(() => left(tokens) === 1000 - sdk.used && left(limiter) === 2);
  });

  test(`${name}: an aborted stream ends its permit, and settles the known tokens`, async (t) => {
    const { client, limiter, tokens } = await set(
      t,
      sdk,
      model(() => new Promise(() => {})),
    );
    for await (const event of await sdk.stream(client)) if (sdk.wordOf(event) !== "") break;
    await until(() => left(limiter) === 2 && left(tokens) === 1000 - sdk.known);
    const aborted = await sdk.stream(client);
    aborted.controller.abort();
    await until(() => left(limiter) === 2);
  });

  test(`${name}: concurrent requests are limited, and the SDK's own retries wait for the limit`, async (t) => {
    let open = 0;
    let most = 0;
    let refusals = 3;
    const { client, arrivals } = await set(
      t,
      sdk,
      async (request, response, body) => {
        most = Math.max(most, ++open);
        await settle();
        open--;
        if (refusals-- > 0)
          return response.writeHead(429, { "retry-after": "0", "content-type": "application/json" }).end('{"error":{"message":"no"}}');
        await model()(request, response, body);
      },
      { heed: { default: 5 } },
    );
    const answers = await Promise.all(Array.from({ length: 6 }, () => sdk.whole(client.withOptions({ maxRetries: 3 }))));
    assert.deepEqual(new Set(answers), new Set([content]));
    assert.equal(arrivals.length, 9);
    assert.ok(most <= 2);
  });

  test(`${name}: a request that gets no permit in time fails with the SDK's error for a timeout`, async (t) => {
    const { client, limiter, arrivals } = await set(t, sdk, model(), { timeout: 0 });
    const held = [limiter.tryAcquire(), limiter.tryAcquire()];
    const error = await sdk.whole(client).catch((error) => error);
    assert.equal(error.constructor.name, "APIConnectionTimeoutError", String(error));
    assert.equal(arrivals.length, 0);
    assert.equal(held.length, 2);
  });
}
