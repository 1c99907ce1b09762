//! The interface of the models of a composite's children, whatever their kind.

use super::frame::{Answer, Model, Now, Permit, Rules, Tick, View};

macro_rules! child {
    (
        [$($look:ident($($what:ident: $whats:ty),*) -> $seen:ty;)*]
        $($edit:ident($($arg:ident: $of:ty),*) $(-> $answer:ty)?;)*
    ) => {
        pub trait Child {
            fn capacity(&self) -> u64;
            fn longest(&self) -> Tick;
            $(fn $look(&self, $($what: $whats),*) -> $seen;)*
            $(fn $edit(&mut self, $($arg: $of),*) $(-> $answer)?;)*
        }

        impl<R: Rules> Child for Model<R> {
            fn capacity(&self) -> u64 {
                self.rules.capacity()
            }
            fn longest(&self) -> Tick {
                self.rules.lengths().1
            }
            $(fn $look(&self, $($what: $whats),*) -> $seen {
                Model::$look(self, $($what),*)
            })*
            $(fn $edit(&mut self, $($arg: $of),*) $(-> $answer)? {
                Model::$edit(self, $($arg),*)
            })*
        }
    };
}

child! {
    [
        view(key: &str, weight: u64) -> Option<View>;
        is_certain(permit: &Permit, all: bool) -> bool;
    ]
    attempt(key: &str, weight: u64) -> Answer;
    cancel(permit: &Permit);
    complete(permit: &Permit);
    settle(permit: &Permit, actual: u64);
    pause(key: &str, pause: Tick);
    clear(key: &str);
    advance(now: Now);
}

/// The strictest view of all, and the child that denied: of several, the first with the longest wait.
pub fn strictest(models: &[Box<dyn Child>], key: &str, weight: u64) -> Option<(View, Option<usize>)> {
    let all = models.iter().map(|model| model.view(key, weight)).collect::<Option<Vec<_>>>()?;
    let retry_after = all.iter().map(|view| view.retry_after).max()?;
    let least = all.iter().min_by_key(|view| view.remaining)?;
    let view = View {
        admitted: all.iter().all(|view| view.admitted),
        retry_after,
        remaining: least.remaining,
        limit: least.limit,
        reset_after: all.iter().map(|view| view.reset_after).max()?,
    };
    let by = all.iter().position(|view| !view.admitted && view.retry_after == retry_after);
    Some((view, by))
}
