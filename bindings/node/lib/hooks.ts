// Hooks: functions that are called when starts are delayed or cannot be decided.

import { types } from "node:util";
import { type LimitError, StoreError, invalid, thrown } from "./errors.js";
import { word } from "./input.js";
import { type QueuedEvent, shared } from "./native.js";

/**
 * An event: "throttled" is a denial, or an `acquire` that has to wait; "unknown_limit" is a name that is not declared;
 * "store_error" is a decision in which the store failed, whatever `onError` returned instead.
 */
export type HookEvent = "throttled" | "unknown_limit" | "store_error";

/** The argument of a hook. */
export interface LimitEvent {
  /** The name of the limit. */
  readonly limit: string;
  /** The key, "" for none, and for the name of a limit that is not found. */
  readonly key: string;
  /** The units that were requested; 0 for the name of a limit that is not found. */
  readonly wanted: number;
  /** The units that were granted: 0. */
  readonly granted: number;
  /** The time in ms until a retry may succeed, or until the waiter tries again. */
  readonly wait: number;
  /** The error; `null` for "throttled". */
  readonly error: LimitError | null;
}

/** A hook. It is called soon after the decision. An error that it throws becomes a process warning. */
export type Hook = (payload: LimitEvent) => unknown;

const EVENTS: readonly HookEvent[] = ["throttled", "unknown_limit", "store_error"];

/**
 * Adds a hook, and returns a function that removes it. `begin` makes the core queue events for the hook's number, and returns the
 * argument of `end`.
 */
export function listen<T>(event: HookEvent, hook: Hook, begin: (hook: number) => T, end: (listening: T) => void): () => void {
  word("event", event, EVENTS);
  if (typeof hook !== "function") throw invalid("hook", hook, "a function");
  const number = ++shared.lastHook;
  // In a turn of its own: the hook may use limiters, and the result of this call has not been read yet.
  shared.hooks.set(number, (queued) => {
    const payload = payloadOf(event, queued);
    void Promise.resolve().then(() => run(event, hook, payload));
  });
  const listening = begin(number);
  return () => {
    if (shared.hooks.delete(number)) end(listening);
  };
}

function payloadOf(event: HookEvent, { limit, key, wanted, wait, error }: QueuedEvent): LimitEvent {
  let reason: LimitError | null = null;
  if (error != null) reason = thrown(new Error(error)) as LimitError;
  // A store whose `onError` is "deny" or "admit" throws no error.
  else if (event === "store_error") reason = new StoreError("the store failed: see its onError", "store_failure", -9);
  return { limit, key, wanted, granted: 0, wait, error: reason };
}

async function run(event: HookEvent, hook: Hook, payload: LimitEvent): Promise<void> {
  try {
    await hook(payload);
  } catch (error) {
    warn(`a hook of "${event}" threw`, error);
  }
}

/** Reports an error that no caller can catch. */
export function warn(what: string, error: unknown): void {
  const why = types.isNativeError(error) ? (error.stack ?? error.message) : String(error);
  process.emitWarning(`${what}: ${why}`, "WorkglowLimitWarning");
}
