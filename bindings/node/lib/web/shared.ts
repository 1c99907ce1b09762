// A store that all tabs and workers of an origin share: each calls the one that leads, which may be itself.
//
// * *Who leads.* All ask for one lock (Web Locks), and whoever gets it leads until it dies: then the browser gives the lock to the next.
// * *Nobody is stopped by a leader that stands still* (a frozen tab, an endless loop). A caller repeats its calls, and who hears nothing
//   for `PATIENCE` steals the lock. The former leader may go on later: the database refuses what it writes (`Database`), so it
//   tells nobody of a start.
// * *No call is lost.* Who does not get an answer asks again, under the same number; each leader answers a number once. If the one
//   that decided died before it told, its start counts, and nobody makes it.

import type { Answer, Call } from "./decider.js";
import { Database, NotLeading } from "./database.js";
import { type Engine, How } from "./engine.js";
import { LimitError, type PlainError, StoreClosed, StoreError, TimeoutError, errorOf } from "./errors.js";
import { Leader, lockOf } from "./leader.js";
import type { Desk } from "./limiter.js";

/** How often a call is repeated that has no answer yet, and after which silence a caller takes over; in ms. */
const BEAT = 250;
const PATIENCE = 2_000;
/** So many starts are remembered, in case one is answered twice. */
const REMEMBERED = 1_000;

type Message =
  | { readonly kind: "call"; readonly from: string; readonly id: string; readonly call: Call }
  /** The call arrived; who waits has to ask again after so many ms. */
  | { readonly kind: "heard"; readonly to: string; readonly id: string; readonly after: number; readonly time: number }
  | { readonly kind: "answer"; readonly to: string; readonly id: string; readonly answer: Answer; readonly time: number }
  | { readonly kind: "error"; readonly to: string; readonly id: string; readonly error: PlainError & { readonly retryAfter?: number } }
  | { readonly kind: "leads" };

interface Asked {
  readonly call: Call;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (error: unknown) => void;
  /** When it was sent last. */
  sent: number;
  /** After how many ms it is sent again. */
  after: number;
}

export class Shared implements Desk {
  readonly #name: string;
  readonly #database: Database;
  readonly #made: (unixUs: number) => Promise<Engine>;
  readonly #engine: Engine;
  readonly #me = crypto.randomUUID();
  readonly #channel: BroadcastChannel;
  readonly #asked = new Map<string, Asked>();
  /** The calls that were answered with a start. */
  readonly #started = new Map<string, Call>();
  #last = 0;
  #leader: Leader | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** For how many beats no leader was heard. (A program that stood still itself has not listened.) */
  #silent = 0;
  #beatAt = 0;
  /** The store's time, as heard at a moment of this program's clock. */
  #time: { readonly us: number; readonly at: number } | null = null;
  #resign: (() => void) | null = null;
  #isClosed = false;
  #die = () => {};

  private constructor(name: string, database: Database, made: (unixUs: number) => Promise<Engine>, engine: Engine) {
    this.#name = name;
    this.#database = database;
    this.#made = made;
    this.#engine = engine;
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }: MessageEvent<Message>) => this.#received(data);
  }

  static async open(address: string, made: (unixUs: number) => Promise<Engine>): Promise<Shared> {
    const name = `workglow-limit ${address}`;
    const shared = new Shared(name, await Database.open(name), made, await made(0));
    await shared.#live();
    shared.#stand();
    return shared;
  }

  /** Holds the lock of this client. */
  #live(): Promise<void> {
    return new Promise((lives) => {
      const life = new Promise<void>((die) => (this.#die = die));
      void navigator.locks.request(lockOf(this.#name, this.#me), () => {
        lives();
        return life;
      });
    });
  }

  call(call: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const id = `${++this.#last}`;
      if (this.#asked.size === 0) this.#silent = 0;
      this.#asked.set(id, { call, resolve, reject, sent: 0, after: BEAT });
      this.#send(id);
      this.#wind();
    });
  }

  unitOfTime(name: string): number {
    return this.#engine.unitOfTime(name);
  }

  #send(id: string): void {
    const asked = this.#asked.get(id)!;
    asked.sent = performance.now();
    const message: Message = { kind: "call", from: this.#me, id, call: asked.call };
    if (this.#leader !== null) this.#decide(this.#leader, message, (message) => this.#received(message));
    else this.#channel.postMessage(message);
  }

  /** Sets the timer for the next call that has to be repeated. */
  #wind(): void {
    clearTimeout(this.#timer);
    if (this.#asked.size === 0 || this.#isClosed) return;
    const next = Math.min(...[...this.#asked.values()].map(({ sent, after }) => sent + after));
    this.#timer = setTimeout(() => this.#beat(), Math.max(1, next - performance.now()));
  }

  #beat(): void {
    const now = performance.now();
    if (now - this.#beatAt >= BEAT) {
      this.#beatAt = now;
      if (++this.#silent > PATIENCE / BEAT && this.#leader === null) {
        this.#silent = 0;
        this.#steal();
      }
    }
    for (const [id, { sent, after }] of this.#asked) if (sent + after <= now) this.#send(id);
    this.#wind();
  }

  #received(message: Message): void {
    if (message.kind === "call") {
      if (this.#leader !== null) this.#decide(this.#leader, message, (message) => this.#isClosed || this.#channel.postMessage(message));
      return;
    }
    if (message.kind === "leads") {
      this.#silent = 0;
      for (const id of this.#asked.keys()) this.#send(id);
      return;
    }
    if (message.to !== this.#me) return;
    this.#silent = 0;
    if ("time" in message) this.#heard(message.time);
    const asked = this.#asked.get(message.id);
    if (message.kind === "heard") {
      if (asked !== undefined) asked.after = Math.min(BEAT, Math.max(1, Math.ceil(message.after) || BEAT));
      return this.#wind();
    }
    this.#asked.delete(message.id);
    if (asked === undefined) return this.#decline(message);
    if (message.kind === "answer" && message.answer?.admitted) this.#remember(message.id, asked.call);
    if (message.kind === "answer") return asked.resolve(message.answer);
    const { error } = message;
    asked.reject(error.retryAfter === undefined ? errorOf(error) : new TimeoutError(error.message, error.retryAfter));
  }

  #remember(id: string, call: Call): void {
    this.#started.set(id, call);
    if (this.#started.size > REMEMBERED) for (const first of this.#started.keys()) if (this.#started.delete(first)) break;
  }

  /** Gives back a start of a second answer: from a leader that was thought dead, or from the next one. */
  #decline(message: Message): void {
    const call = message.kind === "answer" && message.answer?.admitted ? this.#started.get(message.id) : undefined;
    if (message.kind !== "answer" || (call?.op !== "decide" && call?.op !== "wait")) return;
    const { name, key, weight } = call;
    const start = { name, key, weight, held: message.answer!.held };
    this.call({ op: "end", start, how: How.cancelled, actual: 0 }).catch(() => {});
  }

  /** Keeps the latest time: it was heard late, so it is late. */
  #heard(us: number): void {
    if (us > (this.#now() ?? -1)) this.#time = { us, at: performance.now() };
  }

  #now(): number | null {
    return this.#time && this.#time.us + (performance.now() - this.#time.at) * 1e3;
  }

  #decide(leader: Leader, { from, id, call }: Message & { kind: "call" }, reply: (message: Message) => unknown): void {
    if (call.op === "wait") leader.meet(from);
    const told = (after: number) => reply({ kind: "heard", to: from, id, after, time: leader.time });
    const answered = leader.call(from, id, call, told);
    answered?.then(
      (answer) => reply({ kind: "answer", to: from, id, answer, time: leader.time }),
      (error) => {
        // The next leader answers.
        if (error instanceof NotLeading) return this.#stop(leader);
        if (leader !== this.#leader) return;
        const { message, code = "store_failure", number = -9, retryAfter } = error as TimeoutError;
        reply({ kind: "error", to: from, id, error: { message, code, number, ...(retryAfter !== undefined && { retryAfter }) } });
      },
    );
  }

  /** Asks for the lock, and again after every time that this program has led. */
  #stand(): void {
    const again = () => void (this.#isClosed || setTimeout(() => this.#stand(), BEAT));
    navigator.locks
      .request(this.#name, () => this.#lead())
      .then(again, (error) => {
        this.#lost();
        if (error instanceof StoreError) this.#refuse(error);
        again();
      });
  }

  /** Takes the lock from a leader that is silent: one at a time. */
  #steal(): void {
    void navigator.locks.request(`${this.#name} steal`, { ifAvailable: true }, async (lock) => {
      if (lock === null) return;
      await new Promise<void>((began) => {
        const led = () => this.#lead(began);
        navigator.locks.request(this.#name, { steal: true }, led).then(began, () => {
          this.#lost();
          began();
        });
      });
    });
  }

  /** Leads until it is replaced or closed. */
  async #lead(began = () => {}): Promise<void> {
    if (this.#isClosed || this.#leader !== null) return;
    const leader = await Leader.begin(this.#name, this.#database, this.#made, () => this.#now());
    const resigned = new Promise<void>((resign) => (this.#resign = resign));
    this.#leader = leader;
    this.#channel.postMessage({ kind: "leads" } satisfies Message);
    this.#received({ kind: "leads" });
    began();
    await resigned;
  }

  /** The lock was stolen, or this program could not begin. (A program has the lock at most once.) */
  #lost(): void {
    if (this.#leader !== null) this.#stop(this.#leader);
  }

  /** Stops leading. */
  #stop(leader: Leader): void {
    if (leader !== this.#leader) return;
    this.#leader = null;
    leader.close(new LimitError("another one leads", "store_failure", -9));
    this.#resign?.();
  }

  #refuse(error: LimitError): void {
    for (const { reject } of this.#asked.values()) reject(error);
    this.#asked.clear();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    const closed = new StoreClosed(`store "${this.#name}" was closed`, "store_closed", -21);
    this.#refuse(closed);
    if (this.#leader !== null) this.#stop(this.#leader);
    this.#channel.close();
    this.#database.close();
    this.#die();
  }
}
