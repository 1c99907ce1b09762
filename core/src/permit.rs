//! What an admitted start holds, as a plain value.

use crate::error::Error;
use crate::time::Tick;
use std::fmt;

/// A permit or place as a plain value: what the bindings carry around. Copies are the same permit; ending it twice is a
/// no-op.
///
/// In Rust, [`Limiter::try_acquire`](crate::Limiter::try_acquire) gives a [`Permit`](crate::Permit) that ends itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawPermit {
    /// The number of the limiter that gave it, in this process, and above that its kind; then what the kind says. Most
    /// callers only carry it around, and copy words.
    words: [u64; 8],
}

/// What a permit says, by the kind of its limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: all permits are alike.
    Null,
    Timed(TimedPermit),
    Lease(LeasePermit),
    Composite(CompositePermit),
    Custom(CustomPermit),
}

/// A start or place of a limit that is a matter of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedPermit {
    pub weight: u64,
    /// `u64::MAX` if it counts nowhere.
    pub ticket: u64,
    /// When it counts from.
    pub stamp: Tick,
    /// When its place came, or will; 0 if it had none.
    pub ready: Tick,
    /// The hash of its key.
    pub key: [u64; 2],
    /// At most [`MOST_GRACE`].
    pub grace: Tick,
    /// A part of its lane's instance.
    pub lane: u16,
}

/// The most that a permit can say of a place's grace.
pub(crate) const MOST_GRACE: Tick = (1 << GRACE_BITS) - 1;

const GRACE_BITS: u32 = 48;

impl TimedPermit {
    /// The same as one that counts nowhere: what is left of a permit whose lane is gone.
    pub fn voided(self) -> Self {
        TimedPermit { ticket: u64::MAX, stamp: 0, ready: 0, ..self }
    }
}

/// A start of a concurrency limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeasePermit {
    /// The member that holds it, and above it a part of its lane's instance: see [`LeasePermit::owner`].
    pub owner: u64,
    /// The slot of its lease.
    pub index: u64,
    pub fence: u64,
    /// The hash of its key.
    pub key: [u64; 2],
}

impl LeasePermit {
    /// A start that holds nothing: the store failed, and the program wanted to go on.
    pub const UNCOUNTED: LeasePermit = LeasePermit { owner: u64::MAX, index: 0, fence: 0, key: [0; 2] };

    /// Members are numbered from 0 on, and never that far.
    pub fn owner(member: u64, instance: u64) -> u64 {
        member | instance << 48
    }
}

/// A start or place of a composite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompositePermit {
    /// Under which the composite keeps its parts.
    pub number: u64,
}

/// A start of a limiter of the program's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CustomPermit {
    /// The hash of its key, for the counts.
    pub key: u64,
    /// What the limiter calls it.
    pub start: u64,
}

/// In the first word, above the limiter's number: the kind. The highest bit is free, for C.
const KIND: u32 = 60;

impl RawPermit {
    #[inline(always)]
    pub(crate) fn new(limiter: u64, kind: Kind) -> RawPermit {
        let (kind, [a, b, c, d, e, f, g]) = match kind {
            Kind::Null => (0, [0; 7]),
            Kind::Timed(TimedPermit { weight, ticket, stamp, ready, key: [h0, h1], grace, lane }) => {
                (1, [weight, ticket, stamp, ready, h0, h1, grace | u64::from(lane) << GRACE_BITS])
            }
            Kind::Lease(LeasePermit { owner, index, fence, key: [h0, h1] }) => (2, [owner, index, fence, h0, h1, 0, 0]),
            Kind::Composite(CompositePermit { number }) => (3, [number, 0, 0, 0, 0, 0, 0]),
            Kind::Custom(CustomPermit { key, start }) => (4, [key, start, 0, 0, 0, 0, 0]),
        };
        RawPermit { words: [limiter | kind << KIND, a, b, c, d, e, f, g] }
    }

    /// What it says, if the limiter of this number gave it.
    #[inline(always)]
    pub(crate) fn of(&self, limiter: u64) -> Option<Kind> {
        if self.limiter() == limiter { self.kind() } else { None }
    }

    /// What it says, if it is anybody's.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Option<Kind> {
        let [head, a, b, c, d, e, f, g] = self.words;
        Some(match head >> KIND {
            0 => Kind::Null,
            1 => Kind::Timed(TimedPermit {
                weight: a,
                ticket: b,
                stamp: c,
                ready: d,
                key: [e, f],
                grace: g & MOST_GRACE,
                lane: (g >> GRACE_BITS) as u16,
            }),
            2 => Kind::Lease(LeasePermit { owner: a, index: b, fence: c, key: [d, e] }),
            3 => Kind::Composite(CompositePermit { number: a }),
            4 => Kind::Custom(CustomPermit { key: a, start: b }),
            _ => return None,
        })
    }

    fn limiter(&self) -> u64 {
        self.words[0] & ((1 << KIND) - 1)
    }

    /// What it says if it is of a limit that is a matter of time.
    pub(crate) fn timed(&self) -> Option<TimedPermit> {
        if let Some(Kind::Timed(start)) = self.kind() { Some(start) } else { None }
    }

    /// The permit as eight words, for C. The highest bit of the first is 0.
    #[inline(always)]
    pub fn to_words(self) -> [u64; 8] {
        self.words
    }

    /// The permit of eight words. Any words will do: a limiter checks whether they are its own.
    #[inline(always)]
    pub fn from_words(words: [u64; 8]) -> RawPermit {
        RawPermit { words }
    }
}

impl fmt::Debug for RawPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawPermit").field("limiter", &self.limiter()).field("kind", &self.kind()).finish()
    }
}

/// A text that is no permit's.
pub(crate) fn unreadable(text: &str) -> Error {
    Error::invalid("place", format_args!("\"{text}\""), "the text of a permit or place")
}
