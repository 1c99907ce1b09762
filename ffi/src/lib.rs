//! The C library: it exports the core crate, and nothing else. `include/workglow_limit.h` is its manual.
//!
//! Types state what C may pass. `Option<&T>` is a handle that the call only reads, or NULL; `Option<NonNull<T>>` a handle
//! that the call changes, which threads share all the same; `Option<Box<T>>` a handle that is freed;
//! `Option<&mut MaybeUninit<T>>` an output. Only texts and structures with a size need checks of their own (`input.rs`).

// C's naming convention.
#![allow(non_camel_case_types)]
// The header's introduction states once, for all functions, what callers must keep to.
#![allow(clippy::missing_safety_doc)]

mod calls;
mod clock;
mod custom;
mod input;
mod joint;
mod limiter;
mod line;
mod line_snapshot;
mod local;
mod permit;
mod rate;
mod shared;
mod stats;
mod status;
mod store;
mod strings;
mod waiter;

#[cfg(test)]
mod tests {
    use crate::input::Sized32;

    fn first<T: Sized32>() -> (&'static str, usize) {
        (std::any::type_name::<T>().rsplit("::").next().unwrap(), T::FIRST)
    }

    #[test]
    fn structures_of_the_last_release_are_large_enough() {
        let first: std::collections::HashMap<_, _> = [
            first::<crate::store::wgl_store_options>(),
            first::<crate::rate::wgl_rate_limiter_options>(),
            first::<crate::local::wgl_concurrency_limiter_options>(),
            first::<crate::local::wgl_delay_limiter_options>(),
            first::<crate::local::wgl_evenly_spaced_rate_limiter_options>(),
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
