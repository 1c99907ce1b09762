// The channels on which the tabs and workers that share a store talk: see `messages.ts`.

import type { Message } from "./messages.js";

/** To so many clients a leader keeps a channel open. */
const CLIENTS = 64;

/** The name of a client, also of the lock that it holds as long as it lives. */
export const lockOf = (client: string): string => `workglow-limit client ${client}`;
const leaderOf = (store: string): string => `workglow-limit leader ${store}`;

/** Calls `hear` with what is sent to a leader. Returns the channel. */
export function inletOf(store: string, hear: (message: Message) => void): BroadcastChannel {
  return opened(leaderOf(store), hear);
}

export class Channels {
  readonly #store: string;
  /** Of all; of this client; of the leader, while something is sent; and of the clients that this leader answers. */
  readonly #all: BroadcastChannel;
  readonly #mine: BroadcastChannel;
  #outlet: BroadcastChannel | null = null;
  readonly #clients = new Map<string, BroadcastChannel>();

  constructor(store: string, client: string, hear: (message: Message) => void) {
    this.#store = store;
    this.#all = opened(`workglow-limit all ${store}`, hear);
    this.#mine = opened(lockOf(client), hear);
  }

  toAll(message: Message): void {
    this.#all.postMessage(message);
  }

  toLeader(message: Message): void {
    if (this.#outlet === null) {
      this.#outlet = new BroadcastChannel(leaderOf(this.#store));
      queueMicrotask(() => this.#closeOutlet());
    }
    this.#outlet.postMessage(message);
  }

  toClient(client: string, message: Message): void {
    const channel = this.#clients.get(client) ?? new BroadcastChannel(lockOf(client));
    // The latest is the last, and the first ones may be gone.
    this.#clients.delete(client);
    this.#clients.set(client, channel);
    channel.postMessage(message);
    if (this.#clients.size > CLIENTS) this.#closeClient(...(this.#clients.entries().next().value as [string, BroadcastChannel]));
  }

  #closeOutlet(): void {
    this.#outlet?.close();
    this.#outlet = null;
  }

  #closeClient(client: string, channel: BroadcastChannel): void {
    channel.close();
    this.#clients.delete(client);
  }

  close(): void {
    for (const channel of [this.#all, this.#mine]) channel.close();
    this.#closeOutlet();
    for (const of of this.#clients) this.#closeClient(...of);
  }
}

function opened(name: string, hear: (message: Message) => void): BroadcastChannel {
  const channel = new BroadcastChannel(name);
  channel.onmessage = ({ data }: MessageEvent<Message>) => hear(data);
  return channel;
}
