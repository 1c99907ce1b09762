// Hooks: who wants to hear of it when starts are held up, or cannot be decided.

import { types } from "node:util";
import { LimitError, StoreError, invalid, thrown } from "./errors.js";
import { word } from "./input.js";
import { type Telling, shared } from "./native.js";

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

/**
 * Adds a hook. `begin` lets the core tell it, by its number, and gives what `end` takes. What this gives takes the hook away.
 */
export function listen<T>(
  event: HookEvent,
  hook: Hook,
  begin: (hook: number) => T,
  end: (listening: T) => void,
): () => void {
  word("event", event, EVENTS);
  if (typeof hook !== "function") throw invalid("hook", hook, "a function");
  const number = ++shared.lastHook;
  // In a turn of its own: it may use limiters, and the answer of this call has not been read yet.
  shared.hooks.set(number, (telling) => {
    const payload = payloadOf(event, telling);
    void Promise.resolve().then(() => run(event, hook, payload));
  });
  const listening = begin(number);
  return () => {
    if (shared.hooks.delete(number)) end(listening);
  };
}

function payloadOf(event: HookEvent, { limit, key, wanted, wait, error }: Telling): HookPayload {
  let reason: LimitError | null = null;
  if (error != null) reason = thrown(new Error(error)) as LimitError;
  // One that answers whatever happens throws none.
  else if (event === "store_error") reason = new StoreError("the store failed: see its onError", "store_failure", -9);
  return { limit, key, wanted, granted: 0, wait, error: reason };
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
