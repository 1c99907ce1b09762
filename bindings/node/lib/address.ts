// Who has sent a request: its address, behind proxies that are declared, and what keys call it.

import { BlockList, isIPv4, isIPv6 } from "node:net";
import { invalid } from "./errors.js";

/** How a framework's requests are read. */
export interface Reader<R> {
  /** The address of the other end of the connection; nothing on a Unix socket. */
  peer(request: R): string | undefined;
  /** A header, repeated ones as one with commas. */
  header(request: R, name: string): string | undefined;
  /** The path, as the client sent it. */
  path(request: R): string;
  /** What the framework knows of who is signed in. */
  user(request: R): unknown;
}

/** How addresses are found. */
export interface AddressOptions {
  /**
   * The addresses and networks of proxies that say whom they forward, such as "10.0.0.0/8", and "unix" for peers without an
   * address. None if not given: then the peer's address counts, whatever headers say.
   */
  trustedProxies?: readonly string[] | undefined;
  /**
   * The header that these proxies write: "X-Forwarded-For" if not given, or "Forwarded". Only one, because proxies pass
   * the other on as the client has sent it. It is read from the right: the first address that is no proxy's is the
   * client's. What cannot be read ends that, and the client is the last that was.
   */
  forwardedHeader?: "X-Forwarded-For" | "Forwarded" | undefined;
  /** IPv6 addresses that have so many bits in common are one client: 64 if not given, 1 to 128. */
  ipv6Prefix?: number | undefined;
}

/** What a peer without an address is called. */
export const UNIX = "unix";

/** What is known of an address. */
interface Host {
  /** How keys call it. */
  readonly key: string;
  readonly isProxy: boolean;
}

/** An address as numbers: four of 8 bits, or eight of 16. */
type Parts = readonly number[];

/** How many addresses are remembered, and how long one is at most, with its port: clients can send anything. */
const MOST_KNOWN = 4_096;
const LONGEST = 128;
const PROXIES = 'a list of addresses and networks such as "10.0.0.0/8", or "unix"';

/** Tells clients apart. */
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
    if (split === undefined) throw invalid("forwardedHeader", forwardedHeader, '"X-Forwarded-For" or "Forwarded"');
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
    // Of "10.1.0.0/8" nobody knows which half is the mistake.
    if (network !== textOf(parts)) throw invalid("trustedProxies", proxy, `${PROXIES}, without bits beyond the prefix`);
    this.#proxies.addSubnet(network, prefix, familyOf(parts));
  }

  /** Is somebody trusted who connects without an address? */
  get trustsUnix(): boolean {
    return this.#trustsUnix;
  }

  /** The client's address, as keys call it. */
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

  /** What is known of an address; `null` if it is none. */
  #lookUp(text: string | null | undefined): Host | null {
    if (text == null || text.length > LONGEST) return null;
    let host = this.#known.get(text);
    if (host !== undefined) return host;
    const parts = partsOf(bare(text));
    host = parts && { key: this.#keyOf(parts), isProxy: this.#proxies.check(textOf(parts), familyOf(parts)) };
    // Whoever is still there is soon known again.
    if (this.#known.size >= MOST_KNOWN) this.#known.clear();
    this.#known.set(text, host);
    return host;
  }

  #keyOf(parts: Parts): string {
    const isWhole = parts.length === 4 || this.#prefix === 128;
    return isWhole ? textOf(parts) : `${textOf(masked(parts, this.#prefix))}/${this.#prefix}`;
  }
}

/** An address without its port and zone. */
function bare(text: string): string {
  const trimmed = text.trim();
  const [, inBrackets] = /^\[([^\]]*)\](?::\d+)?$/.exec(trimmed) ?? [];
  const isWithPort = inBrackets === undefined && trimmed.indexOf(":") === trimmed.lastIndexOf(":");
  return (inBrackets ?? (isWithPort ? trimmed.replace(/:.*/, "") : trimmed)).replace(/%.*/, "");
}

/** An address; IPv4 within IPv6 is IPv4. `null` for anything else. */
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

/** The canonical text. */
function textOf(parts: Parts): string {
  if (parts.length === 4) return parts.join(".");
  return new URL(`http://[${parts.map((part) => part.toString(16)).join(":")}]`).hostname.slice(1, -1);
}

const familyOf = (parts: Parts): "ipv4" | "ipv6" => (parts.length === 4 ? "ipv4" : "ipv6");

/** An address with 0 for all bits beyond a prefix. */
function masked(parts: Parts, prefix: number): Parts {
  const width = parts.length === 4 ? 8 : 16;
  return parts.map((part, i) => {
    const beyond = Math.min(width, Math.max(0, (i + 1) * width - prefix));
    return (part >> beyond) << beyond;
  });
}

// An element of Forwarded, and what it is for.
const ELEMENTS = /^(?:[^",]|"(?:[^"\\]|\\.)*")*(?:,(?:[^",]|"(?:[^"\\]|\\.)*")*)*$/;
const ELEMENT = /(?:[^",]|"(?:[^"\\]|\\.)*")+/g;
const FOR = /(?:^|;)\s*for\s*=\s*(?:"([^"\\]*)"|([^\s;"]+))\s*(?=;|$)/gi;

/** The addresses of such a header, from left to right; `null` for what is none. */
const SPLITS: Record<string, (line: string) => (string | null)[]> = {
  "x-forwarded-for": (line) => line.split(","),
  forwarded(line) {
    // A quotation that does not end: nobody knows whose the rest is.
    if (!ELEMENTS.test(line)) return [null];
    return (line.match(ELEMENT) ?? []).map((element) => {
      const found = [...element.trim().matchAll(FOR)];
      return found.length === 1 ? (found[0]![1] ?? found[0]![2]!) : null;
    });
  },
};
