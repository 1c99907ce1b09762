// The tokens of a request to a model: estimated before it is sent, and read from its response.

import { StringDecoder } from "node:string_decoder";
import type { HttpResponse } from "./response.js";

/** A kind of tokens. */
export type TokenKind = "total" | "input" | "output";

/** Tokens by their kinds. */
export type Tokens = { readonly [kind in TokenKind]?: number };

/** All kinds of tokens. */
export const KINDS: readonly TokenKind[] = ["total", "input", "output"];

/**
 * Returns a response's tokens, of each kind if several are counted, from its JSON body, or from each JSON event of its stream; nothing
 * if they are not stated there.
 */
export type Usage = (data: unknown, response: HttpResponse) => number | Tokens | null | undefined;

/** The most characters of a body that are kept to find its usage. */
const LONGEST = 1 << 24;

const isRecord = (data: unknown): data is Record<string, unknown> => typeof data === "object" && data !== null && !Array.isArray(data);

/** Parses JSON; `undefined` if it is invalid. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Estimates the tokens of a request with a JSON body: a quarter of its characters, plus the most that the model may write. */
export function estimateOf(text: string | null): Tokens {
  const body = text === null ? undefined : parsed(text);
  if (!isRecord(body)) return { total: 0, input: 0, output: 0 };
  const most = body.max_completion_tokens ?? body.max_output_tokens ?? body.max_tokens;
  const input = Math.ceil(characters(body) / 4);
  const output = Number.isSafeInteger(most) && (most as number) > 0 ? (most as number) : 0;
  return { total: input + output, input, output };
}

/** Counts the characters of all texts. Files that are encoded as text do not count. */
function characters(value: unknown): number {
  if (typeof value === "string") return value.startsWith("data:") ? 0 : value.length;
  if (typeof value !== "object" || value === null) return 0;
  return Object.entries(value).reduce((sum, [name, part]) => sum + (name === "data" && typeof part === "string" ? 0 : characters(part)), 0);
}

/** Reads the tokens of a response while its body is read. */
export class Meter {
  readonly #usage: ((data: unknown) => Tokens | undefined) | undefined;
  readonly #isStream: boolean;
  readonly #decoder = new StringDecoder();
  #pieces: string[] = [];
  #length = 0;
  /** The lines of an incomplete event. */
  #event: string[] = [];
  /** The usage fields of OpenAI and Anthropic. Later numbers replace earlier ones. */
  readonly #fields: Record<string, number> = {};
  #used: Tokens | undefined;

  constructor(type: string, usage: ((data: unknown) => Tokens | undefined) | undefined) {
    this.#usage = usage;
    this.#isStream = /^\s*(text\/event-stream|application\/(x-)?(ndjson|jsonl))\b/i.test(type);
    if (!this.#isStream && !/^\s*application\/([\w.-]+\+)?json\b/i.test(type)) this.#length = Infinity;
  }

  /** Reads a part of the body. */
  write(part: Uint8Array | string): void {
    if (this.#length > LONGEST) return;
    const text = typeof part === "string" ? part : this.#decoder.write(Buffer.from(part.buffer, part.byteOffset, part.byteLength));
    this.#pieces.push(text);
    this.#length += text.length;
    if (this.#isStream && /[\r\n]/.test(text)) this.#readLines();
    if (this.#length > LONGEST) this.#pieces = [];
  }

  /** Ends the body, and returns its tokens if they were stated. */
  end(): Tokens | undefined {
    if (this.#length <= LONGEST && this.#isStream) {
      this.#pieces.push("\n\n");
      this.#readLines();
    } else if (this.#length <= LONGEST) {
      this.#read(this.#pieces.join(""));
    }
    this.#pieces = [];
    return this.#used;
  }

  /** Reads the complete lines of a stream: an event ends with an empty line, or is one line of JSON. */
  #readLines(): void {
    const lines = this.#pieces.join("").split(/\r\n|\n|\r(?!$)/);
    this.#pieces = [lines.pop()!];
    this.#length = this.#pieces[0]!.length;
    for (const line of lines) {
      if (line.startsWith("data:")) this.#event.push(line.slice(5));
      else if (line.startsWith("{")) this.#read(line);
      else if (line === "" && this.#event.length > 0) this.#read(this.#event.splice(0).join("\n"));
    }
  }

  #read(text: string): void {
    // Most events have no usage, and need no parsing.
    if (this.#usage === undefined && !text.includes('"usage"')) return;
    const data = parsed(text);
    if (data === undefined) return;
    this.#used = (this.#usage === undefined ? this.#sum(data) : this.#usage(data)) ?? this.#used;
  }

  /** Adds up the usage of OpenAI and Anthropic: of a whole response, at the end of a stream, or at its beginning and end. */
  #sum(data: unknown): Tokens | undefined {
    if (!isRecord(data)) return undefined;
    const { usage, response, message } = data;
    for (const found of [isRecord(message) && message.usage, isRecord(response) && response.usage, usage]) {
      for (const [name, value] of Object.entries(isRecord(found) ? found : {})) {
        if (typeof value === "number") this.#fields[name] = value;
      }
    }
    const { total_tokens, input_tokens, output_tokens = 0, cache_creation_input_tokens = 0 } = this.#fields;
    const { prompt_tokens, completion_tokens = 0 } = this.#fields;
    const total = total_tokens === undefined ? {} : { total: total_tokens };
    if (input_tokens !== undefined) return { ...both(input_tokens + cache_creation_input_tokens, output_tokens), ...total };
    if (prompt_tokens !== undefined) return { ...both(prompt_tokens, completion_tokens), ...total };
    return total_tokens === undefined ? undefined : total;
  }
}

const both = (input: number, output: number): Tokens => ({ total: input + output, input, output });
