// Stores: where limits live.

import { version } from "./bytes.js";
import { type Clock, ManualClock, SystemClock } from "./clock.js";
import { Decider } from "./decider.js";
import { Engine, How } from "./engine.js";
import { LimitError, StoreClosed, invalid } from "./errors.js";
import { keyOf, options as checked, text } from "./input.js";
import { instanceOf } from "./instances.js";
import { type Desk, type KeyOptions, Limiter, nameOf } from "./limiter.js";
import { Shared } from "./shared.js";

/** The options of a store. */
export interface OpenOptions {
  /** A clock for tests. With "indexeddb:NAME", all who open it need the same one. */
  clock?: ManualClock | undefined;
  /** The compiled module, where a program cannot compile one, as in Cloudflare's workers: `workglow-limit/web/module.wasm` of this version. */
  module?: WebAssembly.Module | undefined;
}

/** Holds limits: in "memory:" for this object, in "indexeddb:NAME" for all tabs and workers of an origin. */
export class Store {
  /** The store's address. */
  readonly url: string;
  readonly #desk: Desk;
  readonly #close: () => void;
  /** The latest limiter of each name that declares a policy. */
  readonly #limiters = new Map<string, Limiter>();
  #isClosed = false;

  private constructor(url: string, desk: Desk, close: () => void) {
    this.url = url;
    this.#close = close;
    const open = () => {
      if (this.#isClosed) throw new StoreClosed(`store "${url}" was closed: to use it again, open it again`, "store_closed", -21);
      return desk;
    };
    const call: Desk["call"] = async (call) => {
      // (Closing it has completed its starts.)
      if (this.#isClosed && call.op === "end" && call.how === How.completed) return null;
      return open().call(call);
    };
    this.#desk = { call, unitOfTime: (name) => open().unitOfTime(name) };
  }

  /** @internal */
  static _of(url: string, desk: Desk, close: () => void): Store {
    return new Store(url, desk, close);
  }

  /**
   * Returns a limiter of this name. With a policy, such as "100/1m", "10/1s burst 20" or "100/1m + 5 concurrent", its first call
   * declares the limit; what was declared last holds. Without one, its first call finds what is declared.
   */
  limiter(name: string, policy?: string): Limiter {
    const limiter = Limiter._of(this.#desk, nameOf(name), policy === undefined ? "" : text("policy", policy));
    if (policy !== undefined) this.#limiters.set(name, limiter);
    return limiter;
  }

  /**
   * Overrides the policy that programs declare under a name with another one, until `lift`. In a limit of several kinds, each policy
   * overrides the part of its kind. With a key, it overrides that key's policy only.
   */
  async override(name: string, policy: string, options?: KeyOptions): Promise<void> {
    if (text("policy", policy) === "") throw invalid("policy", policy, "a policy, such as 100/1m");
    await this.#override(nameOf(name), policy, keyIn(options));
  }

  /** Removes the override of a limit, or of a key. No effect if there is none. */
  async lift(name: string, options?: KeyOptions): Promise<void> {
    await this.#override(nameOf(name), "", keyIn(options));
  }

  async #override(name: string, policy: string, key: string | undefined): Promise<void> {
    await this.#limiters.get(name)?._open();
    await this.#desk.call({ op: "override", name, policy, key });
  }

  /** Closes the store: waiters and later calls reject, and starts that hold units are completed. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#close();
  }
}

function keyIn(options: KeyOptions | undefined): string | undefined {
  const { key } = checked(options, ["key"]);
  return key === undefined ? undefined : keyOf(key);
}

/** Opens a store. `compiled`: the compiled module, if the caller passes none. */
export async function openWith(compiled: () => Promise<WebAssembly.Module>, url: string, options?: OpenOptions): Promise<Store> {
  const { clock, module } = checked(options, ["clock", "module"]);
  if (clock !== undefined && !(clock instanceof ManualClock)) throw invalid("clock", clock, "a ManualClock");
  if (module !== undefined && !(module instanceof WebAssembly.Module)) throw invalid("module", module, "a WebAssembly.Module");
  const address = text("url", url);
  const name = /^indexeddb:(.+)$/s.exec(address)?.[1];
  if (address !== "memory:" && name === undefined) throw invalid("url", url, '"memory:" or "indexeddb:NAME"');
  const imports = module === undefined ? [] : WebAssembly.Module.imports(module);
  const made = async (unixUs: number) => {
    const [instance, leave] = imports.length > 0 ? [] : await instanceOf(module ?? (await compiled()));
    if (!instance || !Engine.fits(instance)) throw invalid("module", module, `the module of this package, version ${version}`);
    return new Engine(instance, unixUs, leave);
  };
  if (name === undefined) return inMemory(made, clock ?? new SystemClock());
  if (globalThis.navigator?.locks === undefined || globalThis.BroadcastChannel === undefined || !("indexedDB" in globalThis)) {
    throw new LimitError(`store "${address}" needs IndexedDB and Web Locks, as browsers have them on pages with https`, "unsupported", -13);
  }
  const shared = await Shared.open(name, clock ?? new SystemClock(), made);
  return Store._of(address, shared, () => shared.close());
}

async function inMemory(made: (unixUs: number) => Promise<Engine>, clock: Clock): Promise<Store> {
  const engine = await made(clock.unixUs);
  const decider = new Decider(engine, clock);
  const desk: Desk = { call: (call) => decider.call(call), unitOfTime: (name) => engine.unitOfTime(name) };
  const closed = new StoreClosed('store "memory:" was closed', "store_closed", -21);
  const close = () => {
    decider.close(closed);
    engine.close();
  };
  return Store._of("memory:", desk, close);
}
