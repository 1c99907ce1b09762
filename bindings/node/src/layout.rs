//! The numbers and the buffer that the addon shares with its TypeScript.
//!
//! `lib/layout.ts` is generated from this module: `UPDATE_LAYOUT=1 cargo test -p workglow-limit-node`.

/// Declares numbers that both sides use, and lists them for `lib/layout.ts`.
macro_rules! numbers {
    (
        $(#[doc = $about:literal])*
        $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $number:literal,)* }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name {
            $($(#[doc = $doc])* $variant = $number,)*
        }

        #[allow(dead_code)] // Rust reads only the numbers of operations, and only a test the lists.
        impl $name {
            /// Returns the variant with this number.
            pub const fn from_number(number: i32) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// The variants: name, number, documentation.
            #[cfg(test)]
            pub const ALL: &[(&str, i32, &str)] =
                &[$((stringify!($variant), $number, concat!($($doc,)*)),)*];

            /// The documentation of the type.
            #[cfg(test)]
            pub const ABOUT: &str = concat!($($about,)*);
        }
    };
}

numbers! {
    /// An operation of a limiter. Unless stated otherwise it reads a key and a weight.
    Operation {
        /// Decides and records: the permit, or `retry_after`.
        Attempt = 0,
        /// Completes the permit in the buffer.
        Complete = 1,
        /// Decides and records: the whole decision.
        Decide = 2,
        /// Computes the decision of `Decide` and records nothing.
        Peek = 3,
        /// Adds a waiter to the line, with `priority`, `share`, `time` as its timeout, and `grace`.
        Join = 4,
        /// Removes the waiter from the line.
        Leave = 5,
        /// Asks whether a start of weight 1 would be admitted.
        CanProceed = 6,
        /// Records a start without a decision.
        RecordJobStart = 7,
        /// Records the end of such a start.
        RecordJobCompletion = 8,
        /// Writes to `time` when a start of weight 1 would be admitted.
        NextAvailableTime = 9,
        /// Sets a gate at the instant `time`.
        SetNextAvailableTime = 10,
        /// Sets a gate `time` ms from now.
        Pause = 11,
        /// Returns to the initial state.
        Clear = 12,
        /// Writes when the permit's place is ready: `time`, `retry_after`, `large`.
        ReadyAt = 13,
        /// Cancels the permit in the buffer.
        Cancel = 14,
        /// Settles the permit in the buffer at `weight` units.
        Settle = 15,
        /// Reserves a place at most `time` ms away, with `grace`.
        Reserve = 16,
        /// Presents the place in the buffer.
        Present = 17,
        /// Adds a waiter that brings the place in the buffer.
        JoinWithPlace = 18,
        /// Writes the text of the permit in the buffer.
        ToText = 19,
        /// Reads the permit from its text.
        FromText = 20,
        /// Renews the lease in the buffer.
        Renew = 21,
        /// Writes the lease's fence to `large`.
        Fence = 22,
        /// Cancels the place in the buffer, unless a start has used it.
        CancelPlace = 23,
        /// Writes the limit's window to `retry_after`.
        Window = 24,
        /// Does the line's work that is due.
        Advance = 25,
        /// Takes the next waiter whose wait has ended.
        Take = 26,
        /// Wakes the waiters of a key, then advances the line.
        Wake = 27,
        /// Wakes all waiters, then advances the line.
        WakeAll = 28,
        /// Starts at once if the start needs no wait, with `grace`.
        Start = 29,
        /// Removes a waiter that brought a place, then advances the line, which returns the place.
        LeaveWithPlace = 30,
        /// Says that the permit's job has reached the server that counts it.
        Arrived = 31,
        /// Settles parts of the permit in the buffer: `text` is their names and units, each ended by a NUL but the last.
        SettleParts = 32,
        /// Writes the number of the alternative's limiter that has the permit in the buffer to `large`.
        Chosen = 33,
        /// Writes to `retry_after` when `weight` more starts will have begun.
        Forecast = 34,
        /// Charges at most `weight` units that others have spent, and leaves `time`. Writes how many it has charged to `remaining`.
        ChargeOthers = 35,
    }
}

numbers! {
    /// The result of an operation.
    Status {
        /// Denied; not yet; no.
        No = 0,
        /// Admitted; started; yes.
        Yes = 1,
        /// The waiter is in the line.
        Waiting = 2,
        /// The waiter's timeout has passed, or would pass before its turn.
        Expired = 3,
        /// The waiter has not joined: what it would have waited for is done. It joins by another call.
        Prepared = 4,
    }
}

numbers! {
    /// A question to a limiter written in JavaScript.
    Question {
        /// Decide and record a start of this key and weight.
        Decide = 0,
        /// Compute when such a start would be admitted.
        Peek = 1,
        /// Complete the start with this number.
        Complete = 2,
        /// Cancel the start with this number.
        Cancel = 3,
        /// Settle the start with this number; the text is the actual weight.
        Settle = 4,
        /// Set a gate on this key; the number is its duration in ms.
        Pause = 5,
        /// Return this key to its initial state.
        Clear = 6,
        /// Record a start of this key without a decision.
        RecordJobStart = 7,
        /// Record the end of such a start.
        RecordJobCompletion = 8,
    }
}

/// Added to an operation that must not wait for the store on this thread. If it would, the closure returns a pending
/// call for the thread pool.
pub const LATER: i32 = 1 << 8;

/// Added to an operation that must run on this thread even if it has to ask a server: its limiter calls JavaScript.
pub const HERE: i32 = 1 << 9;

/// In `text_length`: the limiter itself denied, so `text` holds no name.
pub const OWN_NAME: i32 = -1;

/// The bytes of `text`: the UTF-8 of 1,024 UTF-16 code units, at most 3 bytes each. The text of a permit is shorter.
pub const TEXT_BYTES: usize = 3 * 1_024;

/// The buffer of all calls in one JavaScript thread.
///
/// Its fields are in the order of their types, without padding, so that JavaScript can read them through typed arrays.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CallBuffer {
    /// In: an [`Operation`], perhaps with [`LATER`] or [`HERE`]. Out: 1 if events for hooks are queued.
    pub operation: i32,
    /// Out: a [`Status`].
    pub status: i32,
    /// In: the bytes of `text` that hold a key or a permit's text. Out: those that hold a permit's text, or the name
    /// of the limit that denied; or [`OWN_NAME`].
    pub text_length: i32,
    /// In, of a waiter: lower numbers start first.
    pub priority: i32,
    /// In: the weight of a start, or its actual weight.
    pub weight: f64,
    /// In: a duration in ms, negative for none; or an instant in ms since the Unix epoch. Out: such an instant.
    pub time: f64,
    /// Out, in µs.
    pub retry_after: f64,
    /// Out, in µs.
    pub suggested_after: f64,
    /// Out, in µs.
    pub reset_after: f64,
    /// Out: units; infinite for no limit.
    pub remaining: f64,
    /// Out: units; infinite for no limit.
    pub limit: f64,
    /// In: a duration in ms, negative for the default.
    pub grace: f64,
    /// In, of a waiter: the share of its tenant, 0 for the one that the store keeps.
    pub share: f64,
    /// In and out: the number of a waiter.
    pub waiter: f64,
    /// Out: in how many ms the line has to be advanced; negative if it is empty.
    pub due: f64,
    /// Out: an instant on the monotonic clock in ns, 0 for none; a lease's fence, or a limiter's number.
    pub large: u64,
    /// In and out: a permit.
    pub permit: [u64; 8],
    /// In and out: UTF-8.
    pub text: [u8; TEXT_BYTES],
}
