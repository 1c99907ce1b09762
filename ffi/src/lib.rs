//! The C library: exports of what the core crate does, and nothing else. `include/workglow_limit.h` is its manual.
//!
//! What C may pass is written in the types. `Option<&T>` is a pointer to a handle or NULL, `Option<Box<T>>` one that
//! is given back, `Option<&mut MaybeUninit<T>>` a place for an answer. So the only pointers left to check by hand are
//! texts, and structures whose size the caller tells (`input.rs`).

// The names are C's.
#![allow(non_camel_case_types)]
// What a caller has to keep to is said once, for all functions, in the header's introduction.
#![allow(clippy::missing_safety_doc)]

mod calls;
mod clock;
mod custom;
mod input;
mod limiter;
mod local;
mod permit;
mod rate;
mod shared;
mod stats;
mod status;
mod store;
mod waiter;

#[cfg(test)]
mod tests {
    use crate::input::Sized32;

    fn first<T: Sized32>() -> (&'static str, usize) {
        (std::any::type_name::<T>().rsplit("::").next().unwrap(), T::FIRST)
    }

    #[test]
    fn programs_of_the_last_release_pass_structures_that_are_large_enough() {
        let first: std::collections::HashMap<_, _> = [
            first::<crate::store::wgl_store_options>(),
            first::<crate::rate::wgl_rate_limiter_options>(),
            first::<crate::local::wgl_concurrency_limiter_options>(),
            first::<crate::local::wgl_delay_limiter_options>(),
            first::<crate::local::wgl_evenly_spaced_limiter_options>(),
            first::<crate::shared::wgl_token_bucket_limiter_options>(),
            first::<crate::shared::wgl_leaky_bucket_limiter_options>(),
            first::<crate::shared::wgl_fixed_window_limiter_options>(),
            first::<crate::shared::wgl_sliding_window_counter_limiter_options>(),
            first::<crate::shared::wgl_flow_control_limiter_options>(),
            first::<crate::custom::wgl_custom_limiter_table>(),
            first::<crate::calls::wgl_decision>(),
            first::<crate::stats::wgl_counts>(),
            first::<crate::waiter::wgl_waiter_options>(),
        ]
        .into();
        let released = include_str!("../../tests/c/abi.txt").lines().filter_map(|line| line.strip_prefix("struct "));
        let sized = released.filter(|line| line.contains(" uint32_t struct_size;"));
        let mut count = 0;
        for line in sized {
            let (name, rest) = line.split_once(' ').unwrap();
            let size: usize = rest.split(' ').next().unwrap().parse().unwrap();
            assert!(first[name] <= size, "{name} had {size} bytes, and is refused below {}", first[name]);
            count += 1;
        }
        assert_eq!(count, first.len(), "not all of them are in tests/c/abi.txt");
    }
}
