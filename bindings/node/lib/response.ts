// Parses what a response says about a limit.

import { invalid } from "./errors.js";

/** A response of `fetch`, `node:http`, undici, got or axios: an object with a status and headers, which are pairs or an object. */
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

/** The statuses of a rate limit: GitHub uses 403, Anthropic 529. */
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

/**
 * Returns the pause that a response asks for, in ms, up to `longest`; the default for a 429 that states none; otherwise `null`. A
 * `Retry-After: 0` asks for a pause of 0.
 */
export function pauseOf(response: HttpResponse, { default: usual, longest }: { default: number; longest: number }): number | null {
  const status = statusOf(response);
  const wait = waitOf(status, headersOf(response)) ?? (status === 429 ? usual : null);
  return wait === null ? null : Math.min(wait, longest);
}

/** Returns a response's status, as `fetch` or as `node:http` names it. */
export function statusOf(response: HttpResponse): number {
  const { status, statusCode = status } = (response ?? {}) as { status?: unknown; statusCode?: unknown };
  if (typeof statusCode === "number") return statusCode;
  throw invalid("response", response, "one with a status or statusCode, and headers");
}

/** Returns a response's headers by lower-case name. Repeated headers are joined. */
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

/** Returns the wait that the headers ask for, in ms; `null` if they state none, or a time in the past. */
function waitOf(status: number, headers: Map<string, string>): number | null {
  const date = instant(headers.get("date") ?? "");
  const now = Number.isNaN(date) ? Date.now() : date;
  if (REFUSALS.includes(status)) {
    const ms = (headers.get("retry-after-ms") ?? "").trim();
    const after = NUMBER.test(ms) ? Number(ms) : until(headers.get("retry-after"), now);
    if (after !== null) return after;
  }
  const waits = resets(status, headers).map((reset) => until(reset, now));
  return waits.reduce((longest, wait) => (wait === null || (longest ?? -1) > wait ? longest : wait), null);
}

/** Returns the resets of all limits with nothing remaining, as they were sent. A 429 need not say what remains. */
function resets(status: number, headers: Map<string, string>): (string | undefined)[] {
  const found: (string | undefined)[] = [];
  const policies = new Map(membersOf(headers.get("ratelimit-policy") ?? ""));
  const members = membersOf(headers.get("ratelimit") ?? "");
  for (const [name, parameters] of members) {
    if (isNone(leftOf(parameters))) found.push(resetOf(parameters, policies.get(name)));
  }
  // An older draft had a dictionary: limit=100, remaining=0, reset=30.
  const pairs = new Map(members.map(([item]) => [item.replace(/=.*/, ""), item.replace(/.*?=/, "")]));
  if (isNone(pairs.get("remaining"))) found.push(pairs.get("reset"));
  // The oldest draft and all vendors have pairs: X-RateLimit-Remaining and -Reset, x-ratelimit-remaining-tokens, …
  for (const [name, value] of headers) {
    if (!/rate-?limit/.test(name)) continue;
    if (name.includes("remaining")) {
      if (isNone(value)) found.push(headers.get(name.replaceAll("remaining", "reset")));
    } else if (status === 429 && name.includes("reset") && !headers.has(name.replaceAll("reset", "remaining"))) found.push(value);
  }
  return found;
}

/** What a server states of one of its budgets. */
export interface Budget {
  /** The most units that it may have left. */
  readonly left: number;
  /** The time in ms until all of it is free again, if it says so. */
  readonly reset: number | null;
}

/** A header of a pair, such as x-ratelimit-remaining-tokens or anthropic-ratelimit-tokens-remaining, and the name in it. */
const LEFT = /^(?:[a-z]+-)*?rate-?limit(?:-remaining)?(?:-(.+?))??(?:-remaining)?$/;

/** Anthropic rounds tokens to the nearest thousand. */
const ROUNDED = 500;

/** Returns the budgets that a response states, by their names: "requests" also of those without one, "tokens", "input-tokens", … */
export function budgetsOf(response: HttpResponse): Map<string, Budget> {
  const headers = headersOf(response);
  const found = new Map<string, Budget>();
  const date = instant(headers.get("date") ?? "");
  const add = (name: string, left: string | undefined, reset: string | undefined, isRounded = false): void => {
    const text = (left ?? "").trim();
    if (!NUMBER.test(text.replace(/^-/, ""))) return;
    const most = Math.max(Math.floor(Number(text)), 0) + (isRounded && text.endsWith("000") ? ROUNDED : 0);
    found.set(name, { left: most, reset: until(reset, Number.isNaN(date) ? Date.now() : date) });
  };
  const policies = new Map(membersOf(headers.get("ratelimit-policy") ?? ""));
  for (const [name, parameters] of membersOf(headers.get("ratelimit") ?? "")) {
    add(name.replace(/^"|"$/g, ""), leftOf(parameters), resetOf(parameters, policies.get(name)));
  }
  for (const [name, value] of headers) {
    const named = name.includes("remaining") ? LEFT.exec(name) : null;
    if (named === null) continue;
    const isRounded = name.startsWith("anthropic-") && name.includes("tokens");
    add(named[1] ?? "requests", value, headers.get(name.replace("remaining", "reset")), isRounded);
  }
  return found;
}

/** What a server states of the size of one of its budgets. */
export interface Quota {
  /** "requests", "tokens", … */
  readonly name: string;
  readonly units: number;
  /** In ms. */
  readonly window: number;
  /** Whether the window follows from the reset, and is not stated. */
  readonly isEstimated: boolean;
}

/** The names of budgets. Others of the IETF's headers count requests. */
const NAMES = ["requests", "tokens", "input-tokens", "output-tokens"];

/** The limits of vendors whose published rules say that a budget refills evenly: its reset shows the window. */
const EVEN = /^(?:x-ratelimit-limit-(requests|tokens)|anthropic-ratelimit-((?:input-|output-)?tokens|requests)-limit)$/;

/**
 * Returns the sizes of budgets that a response states, each with its window. Leaves out what is not certain: budgets of several windows
 * or of a part of the callers, and those whose window is not stated and not shown by the reset.
 */
export function quotasOf(response: HttpResponse): Quota[] {
  const headers = headersOf(response);
  const date = instant(headers.get("date") ?? "");
  const stated = new Map<string, Map<string, Quota | null>>();
  for (const field of ["ratelimit-policy", "ratelimit-limit"]) {
    for (const [item, parameters] of membersOf(headers.get(field) ?? "")) {
      const [units, window] = [parameters.get("q") ?? item, parameters.get("w") ?? ""];
      if (!NUMBER.test(units) || !NUMBER.test(window)) continue;
      const text = item.replace(/^"|"$/g, "");
      const name = NAMES.includes(text) ? text : "requests";
      const isCertain = (parameters.get("qu") ?? '"requests"') === '"requests"' && !parameters.has("pk");
      const of = stated.get(name) ?? new Map<string, Quota | null>();
      stated.set(name, of);
      const quota = { name, units: Math.floor(Number(units)), window: Number(window) * 1e3, isEstimated: false };
      of.set(isCertain ? `${quota.units};${quota.window}` : "", isCertain ? quota : null);
    }
  }
  const found = [...stated.values()].flatMap((of) => (of.size === 1 ? [...of.values()] : [])).filter((quota) => quota !== null);
  for (const [header, value] of headers) {
    const named = EVEN.exec(header);
    const name = named?.[1] ?? named?.[2];
    if (name === undefined || !/^[0-9]+$/.test(value.trim())) continue;
    const [left = "", end = ""] = ["remaining", "reset"].map((what) => headers.get(header.replace(/-limit(?=-|$)/, `-${what}`))?.trim());
    const reset = until(end, Number.isNaN(date) ? Date.now() : date);
    if (!/^[0-9]+$/.test(left) || reset === null) continue;
    const units = Number(value);
    const used = units - Number(left);
    // Each number may be off by its last digit, and so the window by a tenth twice.
    const rounded = header.startsWith("anthropic-") && name.includes("tokens") ? ROUNDED : 1;
    SPANS.lastIndex = 0;
    const digit = SPANS.test(end) && /\.|ms/.test(end) ? 10 : 1e3;
    if (used >= 10 * rounded && reset >= 10 * digit) found.push({ name, units, window: (reset * units) / used, isEstimated: true });
  }
  return found;
}

/** Returns what is left by a member of RateLimit: drafts call it r or a. */
const leftOf = (parameters: Map<string, string>): string | undefined => parameters.get("r") ?? parameters.get("a");

/** Returns when that ends: drafts call it t or w. Without either it is the policy's whole window: no unit is free later than that. */
const resetOf = (parameters: Map<string, string>, policy: Map<string, string> | undefined): string | undefined =>
  parameters.get("t") ?? parameters.get("w") ?? policy?.get("w");

/** Parses the list of a structured field; empty if it is malformed. */
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

/** Returns whether nothing is left. Some servers count below 0. */
function isNone(remaining: string | undefined): boolean {
  const text = (remaining ?? "").trim();
  return NUMBER.test(text.replace(/^-/, "")) && Number(text) <= 0;
}

/**
 * Returns the time until a reset in ms. It may be seconds, a duration such as 6m0s, or an instant. `null` for the past and for other
 * text.
 */
function until(given: string | undefined, now: number): number | null {
  const text = (given ?? "").trim();
  if (SPANS.test(text)) return [...text.matchAll(SPAN)].reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[unit!]!, 0);
  const number = NUMBER.test(text) ? Number(text) : NaN;
  if (number < 1e9) return number * 1e3;
  // A number of 30 years or more is an instant, in seconds or ms since the epoch.
  const at = Number.isNaN(number) ? instant(text) : number >= 1e12 ? number : number * 1e3;
  return at > now ? at - now : null;
}

/** Parses an HTTP date or an RFC 3339 date to ms since the epoch; `NaN` for other text. */
function instant(text: string): number {
  if (ISO.test(text)) return Date.parse(text);
  return HTTP_DATE.test(text) ? Date.parse(text.endsWith("GMT") ? text : `${text} GMT`) : NaN;
}
