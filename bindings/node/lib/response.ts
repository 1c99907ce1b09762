// What a response says of a limit.

import { invalid } from "./errors.js";

/**
 * A response of `fetch`, `node:http`, undici, got, axios: anything with a status and headers, which are pairs or an object.
 */
export type HttpResponse =
  | {
      /** The status, as `fetch` and axios name it. */
      readonly status: number;
      /** Pairs, or an object. */
      readonly headers: object;
    }
  | {
      /** The status, as `node:http`, undici and got name it. */
      readonly statusCode?: number | undefined;
      /** Pairs, or an object. */
      readonly headers: object;
    };

/** A structured field's list: each item's text, and its parameters. */
type Members = [item: string, parameters: Map<string, string>][];

/** With these a server says "not so fast": 403 is GitHub's, 529 Anthropic's. */
const REFUSALS = [403, 429, 503, 529];

const NUMBER = /^[0-9]+(?:\.[0-9]+)?$/;
const SPAN = /([0-9]+(?:\.[0-9]+)?)(ms|us|µs|d|h|m|s)/g;
const SPANS = new RegExp(`^(?:${SPAN.source})+$`);
const UNITS: Record<string, number> = { d: 864e5, h: 36e5, m: 6e4, s: 1e3, ms: 1, us: 1e-3, µs: 1e-3 };
const ISO = /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})$/;
const HTTP_DATE = /^(?:[A-Z][a-z]+, [0-9A-Za-z: -]+ GMT|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4})$/;

// One member of a structured field's list: an item, and its parameters.
const STRING = String.raw`"(?:[^"\\]|\\.)*"`;
const VALUE = String.raw`${STRING}|[^\s",;]+`;
const NAME = "[a-z*][a-z0-9_.*-]*";
const MEMBER = new RegExp(String.raw`\s*(${VALUE})((?:\s*;\s*${NAME}(?:=(?:${VALUE}))?)*)\s*(?:,|$)`, "y");
const PARAMETER = new RegExp(String.raw`;\s*(${NAME})=(${VALUE})`, "g");

/** For how many ms a response says to wait, from none to the longest; after a 429 that does not say, the default. */
export function pauseOf(response: HttpResponse, { default: usual, longest }: { default: number; longest: number }): number {
  const status = statusOf(response);
  return Math.min(waitOf(status, headersOf(response)) || (status === 429 ? usual : 0), longest);
}

/** A response's status, as `fetch` or as `node:http` names it. */
export function statusOf(response: HttpResponse): number {
  const { status, statusCode = status } = (response ?? {}) as { status?: unknown; statusCode?: unknown };
  if (typeof statusCode === "number") return statusCode;
  throw invalid("response", response, "one with a status or statusCode, and headers");
}

/** A response's headers by their names in small letters, repeated ones as one. */
export function headersOf(response: HttpResponse): Map<string, string> {
  const given: unknown = response.headers;
  if (typeof given !== "object" || given === null) {
    throw invalid("response", response, "one with a status or statusCode, and headers");
  }
  const headers = new Map<string, string>();
  for (const [name, value] of Symbol.iterator in given ? (given as Iterable<[string, unknown]>) : Object.entries(given)) {
    const text = Array.isArray(value) ? value.join(", ") : String(value ?? "");
    headers.set(name.toLowerCase(), text);
  }
  return headers;
}

/** How long to wait for what the headers say, in ms. 0 if they say nothing, or that it is over. */
function waitOf(status: number, headers: Map<string, string>): number {
  const date = instant(headers.get("date") ?? "");
  const now = Number.isNaN(date) ? Date.now() : date;
  const after = REFUSALS.includes(status) ? until(headers.get("retry-after"), now) : 0;
  return after || Math.max(0, ...resets(headers).map((reset) => until(reset, now)));
}

/** When what has nothing remaining has something again: texts, as they were sent. */
function resets(headers: Map<string, string>): (string | undefined)[] {
  const found: (string | undefined)[] = [];
  const policies = new Map(membersOf(headers.get("ratelimit-policy") ?? ""));
  const members = membersOf(headers.get("ratelimit") ?? "");
  for (const [name, parameters] of members) {
    // It may come earlier than after the whole window, but not later.
    if (isNone(parameters.get("r"))) found.push(parameters.get("t") ?? policies.get(name)?.get("w"));
  }
  // An older draft had a dictionary: limit=100, remaining=0, reset=30.
  const pairs = new Map(members.map(([item]) => [item.replace(/=.*/, ""), item.replace(/.*?=/, "")]));
  if (isNone(pairs.get("remaining"))) found.push(pairs.get("reset"));
  // The oldest, and all vendors, in pairs: X-RateLimit-Remaining and -Reset, x-ratelimit-remaining-tokens, …
  for (const [name, value] of headers) {
    if (/rate-?limit/.test(name) && name.includes("remaining") && isNone(value)) {
      found.push(headers.get(name.replaceAll("remaining", "reset")));
    }
  }
  return found;
}

/** The list of a structured field; empty if it is not well-formed. */
function membersOf(field: string): Members {
  const members: Members = [];
  MEMBER.lastIndex = 0;
  while (MEMBER.lastIndex < field.length) {
    const found = MEMBER.exec(field);
    if (found === null) return [];
    const parameters = [...found[2]!.matchAll(PARAMETER)].map(([, name, value]) => [name!, value!] as const);
    members.push([found[1]!, new Map(parameters)]);
  }
  return members;
}

/** Is nothing left? Some count below 0. */
function isNone(remaining: string | undefined): boolean {
  const text = (remaining ?? "").trim();
  return NUMBER.test(text.replace(/^-/, "")) && Number(text) <= 0;
}

/** How long until then, in ms: seconds, a duration such as 6m0s, or an instant. 0 for the past and for anything else. */
function until(given: string | undefined, now: number): number {
  const text = (given ?? "").trim();
  let ms = instant(text) - now;
  if (NUMBER.test(text)) {
    const number = Number(text);
    // Nobody waits for 30 years: these are seconds, or ms, of the epoch.
    ms = number >= 1e12 ? number - now : number >= 1e9 ? number * 1e3 - now : number * 1e3;
  } else if (SPANS.test(text)) {
    ms = [...text.matchAll(SPAN)].reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[unit!]!, 0);
  }
  return ms > 0 ? ms : 0;
}

/** An HTTP date, or one of RFC 3339, in ms of the epoch. `NaN` for anything else. */
function instant(text: string): number {
  if (ISO.test(text)) return Date.parse(text);
  return HTTP_DATE.test(text) ? Date.parse(text.endsWith("GMT") ? text : `${text} GMT`) : NaN;
}
