//! stub
pub(crate) const MOST: u64 = 65_535;
pub(crate) const WORDS: u64 = 4;
pub(crate) fn slots(max: u64) -> u64 {
    (2 * max).next_power_of_two().max(16)
}
