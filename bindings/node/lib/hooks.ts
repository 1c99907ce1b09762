// Hooks: who wants to hear of it when starts are held up, or cannot be decided.

import { types } from "node:util";
import { type LimitError, StoreError, UnknownLimit, invalid } from "./errors.js";
import { word } from "./input.js";
import { shared } from "./native.js";

/**
 * What can be listened to: "throttled", a denial, or an `acquire` that has to wait; "unknown_limit", a name that is not
 * declared; "store_error", a decision that the store failed, whatever was answered instead.
 */
export type HookEvent = "throttled" | "unknown_limit" | "store_error";

/** What a hook is told. */
export interface HookPayload {
  /** The name of the limit. */
  readonly limit: string;
  /** The key, "" for none. */
  readonly key: string;
  /** How many units were wanted. */
  readonly wanted: number;
  /** How many were granted then: none. */
  readonly granted: number;
  /** In ms: how long until a retry may succeed, or until the waiter looks again. */
  readonly wait: number;
  /** What is wrong; `null` if nothing is. */
  readonly error: LimitError | null;
}

/** A hook. It is called soon after the decision. What it throws becomes a warning of the process's. */
export type Hook = (payload: HookPayload) => unknown;

const EVENTS: readonly HookEvent[] = ["throttled", "unknown_limit", "store_error"];

/** The hooks of one limiter or store. */
export class Hooks {
  #all: { readonly event: HookEvent; readonly hook: Hook }[] = [];

  /** Adds one. What it gives takes it away again. */
  on(event: HookEvent, hook: Hook): () => void {
    word("event", event, EVENTS);
    if (typeof hook !== "function") throw invalid("hook", hook, "a function");
    const added = { event, hook };
    this.#all.push(added);
    shared.hooks++;
    return () => {
      const before = this.#all.length;
      this.#all = this.#all.filter((other) => other !== added);
      shared.hooks -= before - this.#all.length;
    };
  }

  /** Calls them in a turn of their own: they may use limiters, and the answer of this call has not been read yet. */
  tell(event: HookEvent, payload: HookPayload): void {
    for (const { event: wanted, hook } of this.#all) {
      if (wanted === event) queueMicrotask(() => void run(event, hook, payload));
    }
  }
}

async function run(event: HookEvent, hook: Hook, payload: HookPayload): Promise<void> {
  try {
    await hook(payload);
  } catch (error) {
    warn(`a hook of "${event}" threw`, error);
  }
}

/** Reports what nobody can catch. */
export function warn(what: string, error: unknown): void {
  const why = types.isNativeError(error) ? (error.stack ?? error.message) : String(error);
  process.emitWarning(`${what}: ${why}`, "WorkglowLimitWarning");
}

/** The event that an error is, if it is one. */
export function eventOf(error: unknown): HookEvent | null {
  if (error instanceof UnknownLimit) return "unknown_limit";
  return error instanceof StoreError ? "store_error" : null;
}
