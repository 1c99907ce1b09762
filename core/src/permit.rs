//! A permit as a plain value.

use crate::error::Error;
use crate::time::Tick;
use std::fmt;

/// A permit or place as a plain value, which the bindings pass around. Copies are the same permit; ending it twice is a
/// no-op.
///
/// In Rust, [`Limiter::try_acquire`](crate::Limiter::try_acquire) returns a [`Permit`](crate::Permit) that ends
/// automatically.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawPermit {
    /// The first word holds the number of the limiter that issued the permit, in this process, and above it the kind.
    /// The other words hold the kind's data. Most callers only pass the permit along, and copy words.
    words: [u64; 8],
}

/// The contents of a permit, by the kind of its limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No data: all permits are alike.
    Null,
    Timed(TimedPermit),
    Lease(LeasePermit),
    Composite(CompositePermit),
    Custom(CustomPermit),
}

/// A start or place of a timed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedPermit {
    pub weight: u64,
    /// `u64::MAX` if it counts nowhere.
    pub ticket: u64,
    /// The tick from which it counts.
    pub stamp: Tick,
    /// The tick at which its place is ready; 0 if it had none.
    pub ready: Tick,
    /// The hash of its key.
    pub key: [u64; 2],
    /// At most [`MAX_GRACE`].
    pub grace: Tick,
    /// A part of its lane's instance.
    pub lane: u16,
}

/// The longest grace that a permit can hold.
pub(crate) const MAX_GRACE: Tick = (1 << GRACE_BITS) - 1;

const GRACE_BITS: u32 = 48;

impl TimedPermit {
    /// Returns the permit as one that counts nowhere, as for a permit whose lane is gone.
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
    /// A start that holds no lease: the store failed, and its failure policy admitted the start.
    pub const UNCOUNTED: LeasePermit = LeasePermit { owner: u64::MAX, index: 0, fence: 0, key: [0; 2] };

    /// Packs a member and its lane's instance. Members are numbered from 0, and never reach the bits above.
    pub fn owner(member: u64, instance: u64) -> u64 {
        member | instance << 48
    }
}

/// A start or place of a composite, or of alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompositePermit {
    /// The number under which the limiter keeps its parts.
    pub number: u64,
    /// The way to the alternative that was chosen: the index of a child plus 1 in the lowest 16 bits, and above them that of
    /// a child of it.
    /// 0: to none.
    pub chosen: u64,
}

/// A start of a user-defined limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CustomPermit {
    /// The hash of its key, for the counts.
    pub key: u64,
    /// The limiter's own number for it.
    pub start: u64,
}

/// The kind is in the first word, above the limiter's number. The highest bit is free, for C.
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
            Kind::Composite(CompositePermit { number, chosen }) => (3, [number, chosen, 0, 0, 0, 0, 0]),
            Kind::Custom(CustomPermit { key, start }) => (4, [key, start, 0, 0, 0, 0, 0]),
        };
        RawPermit { words: [limiter | kind << KIND, a, b, c, d, e, f, g] }
    }

    /// Returns the contents, if the limiter with this number issued the permit.
    #[inline(always)]
    pub(crate) fn of(&self, limiter: u64) -> Option<Kind> {
        if self.limiter() == limiter { self.kind() } else { None }
    }

    /// Returns the contents, whichever limiter issued the permit.
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
                grace: g & MAX_GRACE,
                lane: (g >> GRACE_BITS) as u16,
            }),
            2 => Kind::Lease(LeasePermit { owner: a, index: b, fence: c, key: [d, e] }),
            3 => Kind::Composite(CompositePermit { number: a, chosen: b }),
            4 => Kind::Custom(CustomPermit { key: a, start: b }),
            _ => return None,
        })
    }

    fn limiter(&self) -> u64 {
        self.words[0] & ((1 << KIND) - 1)
    }

    /// Returns the contents if the permit belongs to a timed limit.
    pub(crate) fn timed(&self) -> Option<TimedPermit> {
        if let Some(Kind::Timed(start)) = self.kind() { Some(start) } else { None }
    }

    /// Returns the permit as eight words, for C. The highest bit of the first is 0.
    #[inline(always)]
    pub fn to_words(self) -> [u64; 8] {
        self.words
    }

    /// Makes a permit from eight words. Any words are accepted: a limiter checks whether they are its own.
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

/// Returns the error for a text that is not a permit or place.
pub(crate) fn unreadable(text: &str) -> Error {
    Error::invalid("place", format_args!("\"{text}\""), "the text of a permit or place")
}
