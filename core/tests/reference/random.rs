//! Random numbers, the same for the same seed.

use super::frame::Tick;

/// A splitmix.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0, below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Small numbers as often as large ones.
    pub fn up_to(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(64 - most.leading_zeros()) + 1);
        self.below((1 << bits.min(62)).min(most) + 1)
    }

    /// A length of time about this scale; at least 1.
    pub fn length(&mut self, scale: Tick) -> Tick {
        match self.below(4) {
            0 => scale,
            1 => 1 + Tick::from(self.up_to(3)),
            _ => 1 + Tick::from(self.up_to(2 * scale as u64)),
        }
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len.max(1) as u64) as usize)
    }
}
