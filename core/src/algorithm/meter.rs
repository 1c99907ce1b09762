//! stub
use crate::time::Tick;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub rate: u64,
    pub period: Tick,
    pub size: u64,
    pub is_leaky: bool,
}
impl Bucket {
    pub const WORDS: usize = 4;
    pub fn new(rate: u64, period: Tick, size: u64, is_leaky: bool) -> Bucket {
        Bucket { rate, period, size, is_leaky }
    }
    pub fn to_words(self) -> [u64; Self::WORDS] {
        [self.rate, self.period, self.size, self.is_leaky.into()]
    }
    pub fn from_words([rate, period, size, leaky]: [u64; Self::WORDS]) -> Bucket {
        Bucket { rate, period, size, is_leaky: leaky != 0 }
    }
    pub fn memory(&self) -> Tick {
        (u128::from(self.size) * u128::from(self.period)).div_ceil(self.rate.into()) as u64
    }
}
