// Generated from src/layout.rs. To change it: UPDATE_LAYOUT=1 cargo test -p workglow-limit-node

/** An operation of a limiter. Unless stated otherwise it reads a key and a weight. */
export const enum Op {
  /** Decides and records: the permit, or `retryAfter`. */
  attempt = 0,
  /** Completes the permit in the buffer. */
  complete = 1,
  /** Decides and records: the whole decision. */
  decide = 2,
  /** Computes the decision of `decide` and records nothing. */
  peek = 3,
  /** Adds a waiter to the line, with `priority`, `share`, `time` as its timeout, and `grace`. */
  join = 4,
  /** Removes the waiter from the line. */
  leave = 5,
  /** Asks whether a start of weight 1 would be admitted. */
  canProceed = 6,
  /** Records a start without a decision. */
  recordJobStart = 7,
  /** Records the end of such a start. */
  recordJobCompletion = 8,
  /** Writes to `time` when a start of weight 1 would be admitted. */
  nextAvailableTime = 9,
  /** Sets a gate at the instant `time`. */
  setNextAvailableTime = 10,
  /** Sets a gate `time` ms from now. */
  pause = 11,
  /** Returns to the initial state. */
  clear = 12,
  /** Writes when the permit's place is ready: `time`, `retryAfter`, `large`. */
  readyAt = 13,
  /** Cancels the permit in the buffer. */
  cancel = 14,
  /** Settles the permit in the buffer at `weight` units. */
  settle = 15,
  /** Reserves a place at most `time` ms away, with `grace`. */
  reserve = 16,
  /** Presents the place in the buffer. */
  present = 17,
  /** Adds a waiter that brings the place in the buffer. */
  joinWithPlace = 18,
  /** Writes the text of the permit in the buffer. */
  toText = 19,
  /** Reads the permit from its text. */
  fromText = 20,
  /** Renews the lease in the buffer. */
  renew = 21,
  /** Writes the lease's fence to `large`. */
  fence = 22,
  /** Cancels the place in the buffer, unless a start has used it. */
  cancelPlace = 23,
  /** Writes the limit's window to `retryAfter`. */
  window = 24,
  /** Does the line's work that is due. */
  advance = 25,
  /** Takes the next waiter whose wait has ended. */
  take = 26,
  /** Wakes the waiters of a key, then advances the line. */
  wake = 27,
  /** Wakes all waiters, then advances the line. */
  wakeAll = 28,
  /** Starts at once if the start needs no wait, with `grace`. */
  start = 29,
  /** Removes a waiter that brought a place, then advances the line, which returns the place. */
  leaveWithPlace = 30,
  /** Says that the permit's job has reached the server that counts it. */
  arrived = 31,
  /** Settles parts of the permit in the buffer: `text` is their names and units, each ended by a NUL but the last. */
  settleParts = 32,
  /** Writes the number of the alternative's limiter that has the permit in the buffer to `large`. */
  chosen = 33,
  /** Writes to `retryAfter` when `weight` more starts will have begun. */
  forecast = 34,
  /** Charges at most `weight` units that others have spent, and leaves `time`. Writes how many it has charged to `remaining`. */
  chargeOthers = 35,
}

/** The result of an operation. */
export const enum Status {
  /** Denied; not yet; no. */
  no = 0,
  /** Admitted; started; yes. */
  yes = 1,
  /** The waiter is in the line. */
  waiting = 2,
  /** The waiter's timeout has passed, or would pass before its turn. */
  expired = 3,
  /** The waiter has not joined: what it would have waited for is done. It joins by another call. */
  prepared = 4,
}

/** A question to a limiter written in JavaScript. */
export const enum Question {
  /** Decide and record a start of this key and weight. */
  decide = 0,
  /** Compute when such a start would be admitted. */
  peek = 1,
  /** Complete the start with this number. */
  complete = 2,
  /** Cancel the start with this number. */
  cancel = 3,
  /** Settle the start with this number; the text is the actual weight. */
  settle = 4,
  /** Set a gate on this key; the number is its duration in ms. */
  pause = 5,
  /** Return this key to its initial state. */
  clear = 6,
  /** Record a start of this key without a decision. */
  recordJobStart = 7,
  /** Record the end of such a start. */
  recordJobCompletion = 8,
}

/** Added to an operation. */
export const enum Flag {
  /** It must not wait for the store on this thread: the closure returns what is left to do. */
  later = 256,
  /** It must run on this thread, even if it has to ask a server. */
  here = 512,
}

/** Indices of 32-bit integers; of the first word of a permit. */
export const enum Int {
  operation = 0,
  status = 1,
  textLength = 2,
  priority = 3,
  permit = 28,
}

/** Indices of 64-bit floats. */
export const enum Num {
  weight = 2,
  time = 3,
  retryAfter = 4,
  suggestedAfter = 5,
  resetAfter = 6,
  remaining = 7,
  limit = 8,
  grace = 9,
  share = 10,
  waiter = 11,
  due = 12,
}

/** Offsets in bytes. */
export const enum Offset {
  large = 104,
  text = 176,
}

/** Sizes of the buffer and of parts of it. */
export const enum Size {
  /** In bytes. */
  buffer = 3248,
  /** In bytes. */
  text = 3072,
  /** In 32-bit integers. */
  permit = 16,
}

/** Values of `textLength` that are no length. */
export const enum TextLength {
  /** The limiter itself denied. */
  ownName = -1,
}
