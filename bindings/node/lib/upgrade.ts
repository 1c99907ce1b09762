// Limits the upgrades of a `node:http` server, which are the handshakes of WebSockets.

import { type IncomingMessage, STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import type { Reader } from "./address.js";
import { invalid } from "./errors.js";
import { warn } from "./hooks.js";
import { Body, Entry, Gate, type RequestLimit, type ServingOptions } from "./serving.js";

export type { AddressOptions } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

/** The options of `limitUpgrades`. */
export type LimitUpgradesOptions = ServingOptions<IncomingMessage, void>;

/** A listener of the event "upgrade" of a `node:http` server. */
export type UpgradeListener = (request: IncomingMessage, socket: Duplex, head: Buffer) => unknown;

/** Wraps a listener, whose upgrades also need these limits: an upgrade is admitted by all of them, or refused. */
export type LimitUpgrades = (
  listener: UpgradeListener,
  ...limits: RequestLimit<IncomingMessage>[]
) => (request: IncomingMessage, socket: Duplex, head: Buffer) => Promise<void>;

const reader: Reader<IncomingMessage> = {
  peer: (request) => request.socket.remoteAddress,
  header: (request, name) => request.headers[name]?.toString(),
  path: (request) => (request.url ?? "/").replace(/[?#].*/s, ""),
  user: ({ user, auth }: IncomingMessage & { user?: unknown; auth?: unknown }) => user ?? auth,
};

const entries = new WeakMap<Duplex, Entry>();

const ignore = (): void => {};

/**
 * Returns a function that wraps listeners of "upgrade", which then answers 429 to handshakes that are denied, and closes their sockets.
 * An upgrade holds its permits until its socket has closed, so a concurrency limit counts open WebSockets. Its status, for
 * `skipSuccessful`, is 101. The user is `request.user`, or `request.auth`. If the listener throws, its socket is destroyed, and the
 * promise rejects with the error.
 */
export function limitUpgrades(options: LimitUpgradesOptions = {}): LimitUpgrades {
  const gate = new Gate(reader, options);

  /** Returns whether the listener is called. */
  async function isAdmitted(limits: typeof gate.limits, request: IncomingMessage, socket: Duplex, entry: Entry): Promise<boolean> {
    const limited = await gate.enter(request, limits, entry, undefined);
    if (limited === null || entry.isOver) return !entry.isOver;
    const body = (await gate.reply(request, limited, undefined, (given): given is undefined => false)) as Body;
    close(socket, limited.status, limited.headers, body);
    return false;
  }

  return (listener, ...limits) => {
    if (typeof listener !== "function") throw invalid("listener", listener, 'a listener of "upgrade"');
    const all = [...gate.limits, ...gate.route(limits)];
    return async (request, socket, head) => {
      // A client that has disconnected has no address any more.
      if (socket.destroyed) return;
      // Node's server no longer listens for errors of the socket, and an error that nobody listens for ends the process.
      socket.on("error", ignore);
      let entry = entries.get(socket);
      try {
        const isExempt = await gate.isExempt(request);
        // A socket that has closed meanwhile would end no entry.
        if (socket.destroyed) return;
        if (!isExempt) {
          if (entry === undefined) entries.set(socket, (entry = entryOf(socket)));
          if (!(await isAdmitted(all, request, socket, entry))) return;
        }
      } catch (error) {
        warn("an upgrade could not be limited", error);
        return close(socket, 500, {}, new Body("", "text/plain"));
      }
      socket.off("error", ignore);
      try {
        await listener(request, socket, head);
      } catch (error) {
        socket.destroy();
        await entry?.end(500);
        throw error;
      }
    };
  };
}

/** Makes the entry of an upgrade, which ends with its socket. */
function entryOf(socket: Duplex): Entry {
  const entry = new Entry();
  socket.once("close", () => void entry.end(101));
  return entry;
}

/** Answers a handshake, and closes the socket. */
function close(socket: Duplex, status: number, headers: Readonly<Record<string, string>>, { content, type }: Body): void {
  const fields = { ...headers, "Content-Type": type, "Content-Length": Buffer.byteLength(content), Connection: "close" };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.once("finish", () => socket.destroy()); // The client might keep its half open.
  socket.write(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join("")}\r\n`);
  socket.end(content);
}
