//! Hashes of names and keys, and checksums of policies.

use crate::policy::POLICY_WORDS;
use siphasher::sip128::SipHasher13;
use std::fmt;

/// The hash of a key or name: 128 bits, keyed with the store's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hash(pub [u64; 2]);

impl Hash {
    #[inline(always)]
    pub fn of(hasher: &SipHasher13, text: &str) -> Hash {
        let hash = hasher.hash(text.as_bytes());
        Hash([hash.h1, hash.h2])
    }

    /// A hash that was written as 32 hexadecimal digits.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub fn parse(text: &str) -> Option<Hash> {
        let half = |part: Option<&str>| u64::from_str_radix(part?, 16).ok();
        Some(Hash([half(text.get(..16))?, half(text.get(16..))?]))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.0;
        write!(f, "{a:016x}{b:016x}")
    }
}

/// The hasher of keys (`b'k'`) or names (`b'n'`) for a secret.
pub(crate) fn hasher([k0, k1]: [u64; 2], kind: u8) -> SipHasher13 {
    SipHasher13::new_with_keys(k0 ^ u64::from(kind), k1)
}

/// The secret with which names and keys on a server are hashed. (A caller that chooses keys can make some that share
/// slots of a process's index, but no two with the same hash.)
pub(crate) const SERVER_SECRET: [u64; 2] = [0x776f_726b_676c_6f77, 0x6c69_6d69_7473_2031];

/// A checksum of a policy's words.
pub(crate) fn sum(policy: [u64; POLICY_WORDS]) -> u64 {
    // The products do not depend on each other, since each decision on a key with its own policy reads a table.
    let products = (0..)
        .zip(policy)
        .map(|(i, word)| (word ^ u64::from(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.rotate_left(5 * i) | 1));
    products.fold(0, u64::wrapping_add)
}
