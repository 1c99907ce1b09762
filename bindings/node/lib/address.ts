// The client of a request: its address, behind declared proxies, and its name in keys.

import { BlockList, isIPv4, isIPv6 } from "node:net";
import { invalid } from "./errors.js";

/** Reads a framework's requests. */
export interface Reader<R> {
  /** Returns the address of the peer of the connection; nothing on a Unix socket. */
  peer(request: R): string | undefined;
  /** Returns a header. Repeated headers are joined with commas. */
  header(request: R, name: string): string | undefined;
  /** Returns the path, as the client sent it. */
  path(request: R): string;
  /** Returns the framework's user. */
  user(request: R): unknown;
}

/** The headers in which proxies report the address of a client. */
export type ForwardedHeader = "X-Forwarded-For" | "Forwarded" | "CF-Connecting-IP" | "Fly-Client-IP" | "True-Client-IP" | "X-Real-IP";

/** How the address of a client is found. */
export interface AddressOptions {
  /**
   * The addresses and networks of proxies whose forwarding header is trusted, such as "10.0.0.0/8"; "unix" is a peer without an
   * address. Default: none, so the peer's address counts and headers are ignored.
   */
  trustedProxies?: readonly string[] | undefined;
  /**
   * The header that these proxies write: "X-Forwarded-For" (the default) or "Forwarded". Only one is read, because proxies pass the
   * other one on as the client sent it. It is read from the right, and the client is the first address that is not a proxy's. An
   * invalid entry ends the search, and the client is the last valid address.
   *
   * "CF-Connecting-IP", "Fly-Client-IP", "True-Client-IP" and "X-Real-IP" have one address, the client's. If there are several, the
   * peer's address counts.
   */
  forwardedHeader?: ForwardedHeader | undefined;
  /** The bits that the IPv6 addresses of one client have in common, 1 to 128. Default: 64. */
  ipv6Prefix?: number | undefined;
}

/** The name of a peer without an address. */
export const UNIX = "unix";

/** A known address. */
interface Host {
  /** Its name in keys. */
  readonly key: string;
  readonly isProxy: boolean;
}

/** An address as numbers: four of 8 bits, or eight of 16. */
type Parts = readonly number[];

/** The most addresses that are remembered, and the longest one with its port: clients can send anything. */
const MOST_KNOWN = 4_096;
const LONGEST = 128;
const HEADERS = '"X-Forwarded-For", "Forwarded", "CF-Connecting-IP", "Fly-Client-IP", "True-Client-IP" or "X-Real-IP"';
const PROXIES = 'a list of addresses and networks such as "10.0.0.0/8", or "unix"';

/** Finds the addresses of clients. */
export class Addresses<R> {
  readonly #reader: Reader<R>;
  readonly #proxies = new BlockList();
  readonly #trustsUnix: boolean;
  readonly #header: string;
  readonly #split: (line: string) => (string | null)[];
  readonly #prefix: number;
  readonly #known = new Map<string, Host | null>();

  constructor(reader: Reader<R>, { trustedProxies = [], forwardedHeader = "X-Forwarded-For", ipv6Prefix = 64 }: AddressOptions) {
    if (!Array.isArray(trustedProxies)) throw invalid("trustedProxies", trustedProxies, PROXIES);
    for (const proxy of trustedProxies) this.#trust(proxy);
    const split = typeof forwardedHeader === "string" ? SPLITS[forwardedHeader.toLowerCase()] : undefined;
    if (split === undefined) throw invalid("forwardedHeader", forwardedHeader, HEADERS);
    if (!Number.isInteger(ipv6Prefix) || ipv6Prefix < 1 || ipv6Prefix > 128) {
      throw invalid("ipv6Prefix", ipv6Prefix, "a whole number from 1 to 128");
    }
    this.#reader = reader;
    this.#trustsUnix = trustedProxies.includes(UNIX);
    this.#header = forwardedHeader.toLowerCase();
    this.#split = split;
    this.#prefix = ipv6Prefix;
  }

  #trust(proxy: unknown): void {
    if (proxy === UNIX) return;
    const [, address = "", length] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(typeof proxy === "string" ? proxy : "") ?? [];
    const parts = partsOf(address);
    if (parts === null) throw invalid("trustedProxies", proxy, PROXIES);
    const bits = parts.length === 4 ? 32 : 128;
    const prefix = length === undefined ? bits : Number(length);
    const network = prefix <= bits && textOf(masked(parts, prefix));
    // Either half of "10.1.0.0/8" may be the mistake.
    if (network !== textOf(parts)) throw invalid("trustedProxies", proxy, `${PROXIES}, without bits beyond the prefix`);
    this.#proxies.addSubnet(network, prefix, familyOf(parts));
  }

  /** Whether peers without an address are trusted. */
  get trustsUnix(): boolean {
    return this.#trustsUnix;
  }

  /** Returns the client's address, as it is named in keys. */
  of(request: R): string {
    let host = this.#lookUp(this.#reader.peer(request)) ?? { key: UNIX, isProxy: this.#trustsUnix };
    if (!host.isProxy) return host.key;
    const entries = this.#split(this.#reader.header(request, this.#header) ?? "");
    while (host.isProxy && entries.length > 0) {
      const before = this.#lookUp(entries.pop());
      if (before === null) break;
      host = before;
    }
    return host.key;
  }

  /** Parses an address, or finds it among the remembered ones; `null` if it is invalid. */
  #lookUp(text: string | null | undefined): Host | null {
    if (text == null || text.length > LONGEST) return null;
    let host = this.#known.get(text);
    if (host !== undefined) return host;
    const parts = partsOf(bare(text));
    host = parts && { key: this.#keyOf(parts), isProxy: this.#proxies.check(textOf(parts), familyOf(parts)) };
    // Active clients are soon remembered again.
    if (this.#known.size >= MOST_KNOWN) this.#known.clear();
    this.#known.set(text, host);
    return host;
  }

  #keyOf(parts: Parts): string {
    const isWhole = parts.length === 4 || this.#prefix === 128;
    return isWhole ? textOf(parts) : `${textOf(masked(parts, this.#prefix))}/${this.#prefix}`;
  }
}

/** Returns an address without its port and zone. */
function bare(text: string): string {
  const trimmed = text.trim();
  const [, inBrackets] = /^\[([^\]]*)\](?::\d+)?$/.exec(trimmed) ?? [];
  const isWithPort = inBrackets === undefined && trimmed.indexOf(":") === trimmed.lastIndexOf(":");
  return (inBrackets ?? (isWithPort ? trimmed.replace(/:.*/, "") : trimmed)).replace(/%.*/, "");
}

/** Parses an address; an IPv4-mapped IPv6 address is IPv4. `null` for other text. */
function partsOf(address: string): Parts | null {
  if (isIPv4(address)) return address.split(".").map(Number);
  if (!isIPv6(address) || address.includes("%")) return null;
  const [left = "", right] = new URL(`http://[${address}]`).hostname.slice(1, -1).split("::");
  const words = (text = ""): number[] => (text === "" ? [] : text.split(":").map((word) => parseInt(word, 16)));
  const [first, last] = [words(left), words(right)];
  const parts = [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
  const isMapped = parts.slice(0, 5).every((part) => part === 0) && parts[5] === 0xffff;
  return isMapped ? parts.slice(6).flatMap((part) => [part >> 8, part & 255]) : parts;
}

/** Returns the canonical text. */
function textOf(parts: Parts): string {
  if (parts.length === 4) return parts.join(".");
  return new URL(`http://[${parts.map((part) => part.toString(16)).join(":")}]`).hostname.slice(1, -1);
}

const familyOf = (parts: Parts): "ipv4" | "ipv6" => (parts.length === 4 ? "ipv4" : "ipv6");

/** Returns an address with all bits after a prefix set to 0. */
function masked(parts: Parts, prefix: number): Parts {
  const width = parts.length === 4 ? 8 : 16;
  return parts.map((part, i) => {
    const beyond = Math.min(width, Math.max(0, (i + 1) * width - prefix));
    return (part >> beyond) << beyond;
  });
}

// An element of Forwarded, and its parameter `for`.
const ELEMENTS = /^(?:[^",]|"(?:[^"\\]|\\.)*")*(?:,(?:[^",]|"(?:[^"\\]|\\.)*")*)*$/;
const ELEMENT = /(?:[^",]|"(?:[^"\\]|\\.)*")+/g;
const FOR = /(?:^|;)\s*for\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))\s*(?=;|$)/gi;

/** A header with one address. Several, joined with commas, are no address. */
const single = (line: string): (string | null)[] => (line === "" ? [] : [line]);

/** Splits a header into its addresses, from left to right; `null` for an invalid entry. */
const SPLITS: Record<string, (line: string) => (string | null)[]> = {
  "x-forwarded-for": (line) => line.split(","),
  "cf-connecting-ip": single,
  "fly-client-ip": single,
  "true-client-ip": single,
  "x-real-ip": single,
  forwarded(line) {
    // A quoted string does not end, so the rest cannot be attributed to a proxy.
    if (!ELEMENTS.test(line)) return [null];
    return (line.match(ELEMENT) ?? []).map((element) => {
      const found = [...element.trim().matchAll(FOR)];
      return found.length === 1 ? (found[0]![1] ?? found[0]![2]!) : null;
    });
  },
};
