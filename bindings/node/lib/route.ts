// Where the requests of each of several providers go.

import type { Child } from "./composite.js";
import { invalid } from "./errors.js";

/** Where the requests of one alternative go, and the headers that replace the request's. */
export interface Destination {
  /** The scheme, host and port that replace the request's, and a path in front of its path, if there is one. */
  readonly baseUrl: string | URL;
  /** `null` removes one. */
  readonly headers?: Readonly<Record<string, string | null>> | undefined;
}

/** Returns where a request goes, from the alternative that was chosen; nothing: where it would go without it. */
export type Route = (chosen: Child) => string | URL | Destination | null | undefined;

/** What one server's client has to prove itself with, and another server must not get: in Python, too. */
const CREDENTIALS = [
  "authorization",
  "proxy-authorization",
  "cookie",
  "x-api-key",
  "api-key",
  "x-goog-api-key",
  "x-auth-token",
  "x-amz-security-token",
  "ocp-apim-subscription-key",
  "openai-organization",
  "openai-project",
];

/** @internal Where a request goes, and the headers to remove and to set. */
export interface Target {
  readonly url: URL;
  readonly without: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  /** Whether it is another server than the request's own. */
  readonly isForeign: boolean;
  /** The request's own URL, and the path that was put in front of its own. */
  readonly own: URL;
  readonly path: string;
}

/** @internal Returns where a request with this URL goes; `null`: where it would go without a route. */
export function targetOf(route: Route | undefined, chosen: Child | null, own: URL): Target | null {
  const to = chosen === null ? null : route?.(chosen);
  if (to == null) return null;
  const isWhole = typeof to === "object" && !(to instanceof URL);
  const { baseUrl, headers = {}, ...others }: Destination = isWhole ? to : { baseUrl: to };
  const expected = 'a base URL such as "https://api.example.com", or an object with baseUrl and headers, from this function';
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) throw invalid("route", `an object with ${JSON.stringify(unknown)}`, expected, true);
  let base: URL;
  try {
    base = new URL(baseUrl);
  } catch {
    throw invalid("route", to, expected);
  }
  const { protocol, username, password, search } = base;
  if (!/^https?:$/.test(protocol) || `${username}${password}${search}` !== "") throw invalid("route", String(baseUrl), expected);
  if (
    typeof headers !== "object" ||
    headers === null ||
    Object.values(headers).some((value) => value !== null && typeof value !== "string")
  ) {
    throw invalid("route", headers, "headers with texts or null as values, from this function");
  }
  const url = new URL(own);
  url.username = url.password = "";
  [url.protocol, url.host, url.port] = [protocol, base.host, base.port];
  const path = base.pathname.replace(/\/+$/, "");
  url.pathname = path + own.pathname;
  const isForeign = url.origin !== own.origin;
  const removed = Object.keys(headers).filter((name) => headers[name] === null);
  const set = Object.entries(headers).filter((header): header is [string, string] => header[1] !== null);
  return {
    url,
    without: [...(isForeign ? [...CREDENTIALS, "host"] : []), ...removed],
    headers: Object.fromEntries(set),
    isForeign,
    own,
    path,
  };
}

/**
 * @internal Returns where a client has to follow a redirect of a request that went elsewhere. Below the base URL that it was sent to,
 * it is the URL that is routed there: the client's next request is routed, too.
 */
export function relocated(location: string, { url, own, path }: Target): string {
  let to: URL;
  try {
    to = new URL(location, url);
  } catch {
    return location;
  }
  if (to.origin !== url.origin || !`${to.pathname}/`.startsWith(`${path}/`)) return location;
  return own.origin + (to.pathname.slice(path.length) || "/") + to.search + to.hash;
}

/** @internal Returns the headers of a request that goes elsewhere. */
export function changed(headers: Headers, { without, headers: others }: Target): Headers {
  for (const name of without) headers.delete(name);
  for (const [name, value] of Object.entries(others)) headers.set(name, value);
  return headers;
}
