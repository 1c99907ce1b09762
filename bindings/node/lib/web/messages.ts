// What the tabs and workers that share a store tell each other.
//
// *The protocol*, on channels (`BroadcastChannel`) of all, of the leader and of each client, so that a client that asks nothing, or is
// frozen, hears of changes of leaders only. (A channel also hears what others send on it: so a client has the leader's only while it sends.)
//
// | message | from | says |
// | --- | --- | --- |
// | `begins` | a client | it has the lock of the leader, and reads the database; to all, and to whoever beats meanwhile |
// | `leads` | the leader | which database and epoch it has; to all when it has begun, and to whoever beats: with the calls that it does not know |
// | `call` | a client | a call, to the leader of this database and epoch; calls of a client have numbers; and which starts it ends no more |
// | `placed` | the leader | the place of a call that waits |
// | `answer` | the leader | the answer of a call, or its error |
// | `forget` | a client | it does not know this call, whose start holds units |
// | `beat` | a client | it waits for answers, or is new: who leads, what time is it, and does the leader know these calls? |

import type { Epoch } from "./clock.js";
import type { Answer, Call, Start } from "./decider.js";
import type { PlainError } from "./errors.js";

type Told = PlainError & { readonly retryAfter?: number };
export type Message =
  | { readonly kind: "begins" }
  | {
      readonly kind: "leads";
      readonly by: Epoch;
      readonly time: number;
      readonly after: number;
      readonly holds?: ReadonlyMap<string, readonly number[]>;
      readonly lost?: readonly number[];
    }
  | {
      readonly kind: "call";
      readonly to: Epoch;
      readonly from: string;
      readonly id: number;
      readonly call: Call;
      readonly order?: number | undefined;
      readonly known: readonly string[];
    }
  | { readonly kind: "placed"; readonly to: string; readonly id: number; readonly order: number }
  | {
      readonly kind: "answer";
      readonly to: string;
      readonly id: number;
      readonly by: Epoch;
      readonly time: number;
      readonly answer?: Answer;
      readonly start?: Start;
      readonly error?: Told;
    }
  | { readonly kind: "forget"; readonly from: string; readonly id: number }
  | { readonly kind: "beat"; readonly from: string; readonly open?: readonly number[] };
