//! Random numbers for the tests beside: the same ones in every run.

/// A small pseudo-random sequence (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `below - 1`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    /// Small numbers as often as large ones.
    pub fn scaled(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros() as u64;
        let most = most.min((2 << self.below(bits.max(1)).min(62)) - 1);
        self.below(most + 1)
    }
}
