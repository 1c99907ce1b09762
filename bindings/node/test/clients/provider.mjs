// A provider that keeps the published rules of OpenAI's and Anthropic's limits: buckets per minute, here without their refill, so that a
// slow machine changes nothing.

import { model, serve } from "./server.mjs";

/**
 * Serves both APIs until the test ends. `left` has the units of the account; other programs spend them with `spend`. A request takes the
 * most tokens that it may use when it arrives, and a refused one takes nothing.
 */
export async function provide(t, { requests = 100, tokens = 10_000, hold = async () => {} } = {}) {
  const left = { requests, input: tokens, output: tokens, tokens };
  const answer = model();
  const { url, arrivals } = await serve(t, async (request, response, body) => {
    const { max_tokens = 0 } = JSON.parse(body || "{}");
    const input = Math.ceil((body.length - 60) / 4);
    const isAnthropic = request.url.startsWith("/v1/messages");
    const isRefused = left.requests < 1 || left.tokens < input + max_tokens;
    if (!isRefused) {
      left.requests -= 1;
      left.tokens -= input + max_tokens;
      left.input -= input;
      left.output -= max_tokens;
    }
    // What is stated is what is left when the request arrives, however long its answer takes.
    const headers = isAnthropic ? anthropic(left) : openai(left, { requests, tokens });
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    await hold(arrivals.length);
    if (isRefused) {
      const retry = isAnthropic ? { "retry-after": "60" } : { "retry-after-ms": "60000", "retry-after": "60" };
      response.writeHead(429, { ...retry, "content-type": "application/json" }).end('{"error":{"message":"slow down"}}');
    } else await answer(request, response, body);
  });
  const spend = (requests, tokens) => {
    left.requests -= requests;
    left.tokens -= tokens;
    left.input -= tokens;
    left.output -= tokens;
  };
  return { url, arrivals, left, spend };
}

const openai = (left, all) => ({
  "x-ratelimit-limit-requests": all.requests,
  "x-ratelimit-limit-tokens": all.tokens,
  "x-ratelimit-remaining-requests": left.requests,
  "x-ratelimit-remaining-tokens": left.tokens,
  "x-ratelimit-reset-requests": "1h0m0s",
  "x-ratelimit-reset-tokens": "1h0m0s",
});

/** Rounds tokens to the nearest thousand. */
const rounded = (tokens) => Math.round(tokens / 1000) * 1000;

const anthropic = (left) => ({
  "anthropic-ratelimit-requests-remaining": left.requests,
  "anthropic-ratelimit-tokens-remaining": rounded(left.tokens),
  "anthropic-ratelimit-input-tokens-remaining": rounded(left.input),
  "anthropic-ratelimit-output-tokens-remaining": rounded(left.output),
  "anthropic-ratelimit-tokens-reset": new Date(Date.now() + 3_600_000).toISOString(),
});
