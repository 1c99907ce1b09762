//! What limiters of several others have in common: the list of these, and the permits and places that are in use.

use super::Child;
use super::joint::{check_names, name_of};
use super::out::{Out, Part, State, Table, Wish, are_over};
use crate::charges::{Split, own_key};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::limiter::internal::{Base, When};
use crate::limiter::{Presented, Reserved, foreign};
use crate::permit::{CompositePermit, Kind, RawPermit};
use crate::policy;
use std::collections::HashSet;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::time::Duration;

/// A limiter of several others.
#[derive(Debug)]
pub(in crate::limiter) struct Group {
    pub base: Base,
    /// The children. The list is replaced as a whole when one is added.
    children: AtomicPtr<List>,
    /// The parts of the permits and places in use.
    pub out: PerProcess<Table>,
    /// How many of its kind enclose this one.
    above: AtomicUsize,
    /// Whether a start takes the units of all children, so that each limit may be there once.
    takes_all: bool,
    /// Whether its permits have to say which alternative was chosen.
    chooses: AtomicBool,
    /// Whether a start takes units of a limit that tenants share.
    has_shared: AtomicBool,
    /// Set if the children were refused.
    refused: Option<Error>,
}

/// A list, and the one that it replaced. Readers may still use an old list, so lists live as long as the limiter.
struct List {
    children: Vec<Child>,
    /// The name that each of them has as a part.
    names: Vec<Arc<str>>,
    before: *mut List,
}

// SAFETY: a list never changes after it is published, and its children are `Send + Sync`.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Makes a group of that name. Children without a name of their own have that of their limits, without the group's
    /// name in front.
    pub fn new(name: &str, takes_all: bool, parts: impl IntoIterator<Item = (Option<Arc<str>>, Child)>) -> Group {
        let (names, children): (Vec<_>, Vec<Child>) = parts.into_iter().unzip();
        let given: Vec<&str> = names.iter().flatten().map(|name| &**name).collect();
        let mut group = Group {
            base: Base::new(name.into()),
            children: AtomicPtr::new(ptr::null_mut()),
            out: PerProcess::new(),
            above: AtomicUsize::new(0),
            takes_all,
            chooses: AtomicBool::new(!takes_all),
            has_shared: AtomicBool::new(false),
            refused: None,
        };
        group.refused = check_names(&[], &given).and_then(|()| group.fits(0, &[], &children)).err();
        if group.refused.is_none() {
            group.take_in(names, children);
        }
        group
    }

    pub fn add_part(&self, name: Option<&str>, child: Child) -> Result<()> {
        // One at a time: two composites that add each other at once must not both check before either has added.
        static ADDING: PerProcess<()> = PerProcess::new();
        let _guard = ADDING.lock();
        if child.contains(self.base.id) {
            return Err(Error::invalid("limiter", "one that contains this one", "one that does not"));
        }
        let (before, children) = (self.children()?, vec![child]);
        check_names(self.names(), name.as_slice())?;
        self.fits(self.above.load(Relaxed), before, &children)?;
        self.take_in(vec![name.map(Arc::from)], children);
        Ok(())
    }

    fn take_in(&self, names: Vec<Option<Arc<str>>>, children: Vec<Child>) {
        let above = self.above.load(Relaxed) + 1;
        children.iter().for_each(|child| child.lower(above));
        self.chooses.fetch_or(children.iter().any(|child| child.chooses()), Relaxed);
        self.has_shared.fetch_or(self.takes_all && children.iter().any(|child| child.is_shared()), Relaxed);
        let named = names.into_iter().zip(&children);
        let names = named.map(|(name, child)| name.unwrap_or_else(|| name_of(&self.base.name, child.name())));
        self.extend(names.collect(), children);
    }

    fn extend(&self, names: Vec<Arc<str>>, new: Vec<Child>) {
        let mut before = self.children.load(Acquire);
        loop {
            // SAFETY: as in `all`.
            let old = unsafe { before.as_ref() };
            let children = old.map_or(&[][..], |list| &list.children).iter().chain(&new).cloned().collect();
            let names = old.map_or(&[][..], |list| &list.names).iter().chain(&names).cloned().collect();
            let list = Box::into_raw(Box::new(List { children, names, before }));
            match self.children.compare_exchange(before, list, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => {
                    // SAFETY: no other thread has seen `list`.
                    drop(unsafe { Box::from_raw(list) });
                    before = now;
                }
            }
        }
    }

    /// Returns whether a start takes units of a limit that tenants share.
    pub fn has_shared(&self) -> bool {
        self.has_shared.load(Relaxed)
    }

    pub fn children(&self) -> Result<&[Child]> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(self.all()),
        }
    }

    /// Returns the children; none if they were refused.
    pub fn all(&self) -> &[Child] {
        // SAFETY: null, or made by `extend` and freed only by `drop`.
        unsafe { self.children.load(Acquire).as_ref() }.map_or(&[], |list| &list.children)
    }

    /// Returns the names of the parts, in the order of the children.
    pub fn names(&self) -> &[Arc<str>] {
        // SAFETY: as in `all`.
        unsafe { self.children.load(Acquire).as_ref() }.map_or(&[], |list| &list.names)
    }

    /// Reads what a start charges each child.
    #[inline(always)]
    pub fn split<'k>(&self, key: &'k str, weight: u64) -> Result<Split<'k>> {
        Split::of(key, weight, self.base.id)
    }

    /// The same for a start, which has a weight.
    #[inline(always)]
    pub fn split_start<'k>(&self, key: &'k str, weight: u64) -> Result<Split<'k>> {
        policy::check_some(weight)?;
        self.split(key, weight)
    }

    /// Checks that a group enclosed by this many others may have these children in addition to those before.
    fn fits(&self, above: usize, before: &[Child], children: &[Child]) -> Result<()> {
        // A start would have to take its units twice, which a limit that has them once never admits.
        let (mut limits, mut seen) = (Vec::new(), HashSet::new());
        if self.takes_all {
            before.iter().chain(children).for_each(|child| child.list_limits(&mut limits));
        }
        if let Some((_, name)) = limits.iter().find(|limit| !seen.insert(*limit)) {
            return Err(Error::invalid(
                "limiter",
                format_args!("limit \"{name}\" twice"),
                "each limit once in a composite",
            ));
        }
        let depth = above + 1 + children.iter().map(|child| child.depth()).max().unwrap_or(0);
        if depth > DEEPEST {
            let value = format_args!("one that is {depth} deep");
            return Err(Error::invalid(
                "limiter",
                value,
                format!("composites and alternatives at most {DEEPEST} deep"),
            ));
        }
        Ok(())
    }

    /// Makes a permit or place.
    pub fn hand_out(&self, out: Out) -> RawPermit {
        let chosen = self.chosen_of(&out.parts);
        let mut table = self.out.lock();
        let number = table.insert(out);
        if table.has_too_many() {
            let suspects = table.suspects();
            drop(table);
            self.forget_those_over(suspects);
        }
        self.permit(number, chosen)
    }

    fn permit(&self, number: u64, chosen: u64) -> RawPermit {
        RawPermit::new(self.base.id, Kind::Composite(CompositePermit { number, chosen }))
    }

    /// Returns [`CompositePermit::chosen`] of a permit with these parts. (Of more than four limiters in one another, the
    /// innermost are not known.)
    fn chosen_of(&self, parts: &[Part]) -> u64 {
        if !self.chooses() {
            return 0;
        }
        let mut all = parts.iter().map(|part| (part.child, chosen(&part.permit)));
        let part = all.find(|(child, inside)| *child < MOST && (*inside != 0 || !self.takes_all));
        part.map_or(0, |(child, inside)| (child as u64 + 1) | inside << BITS)
    }

    pub fn chooses(&self) -> bool {
        self.chooses.load(Relaxed)
    }

    /// Returns the child that [`CompositePermit::chosen`] leads to, its index, and what leads on from there.
    pub fn chosen_child(&self, chosen: u64) -> Option<(usize, &Child, u64)> {
        let at = (chosen as usize & MOST).checked_sub(1)?;
        Some((at, self.all().get(at)?, chosen >> BITS))
    }

    #[cold]
    fn forget_those_over(&self, suspects: impl IntoIterator<Item = (u64, Vec<Part>)>) {
        for (old, parts) in suspects {
            if are_over(self.all(), &parts) {
                self.out.lock().remove(old);
            }
        }
    }

    /// Returns the number of this limiter's permit.
    pub fn own(&self, permit: &RawPermit) -> Result<u64> {
        match permit.of(self.base.id) {
            Some(Kind::Composite(CompositePermit { number, .. })) => Ok(number),
            _ => foreign(&self.base.name),
        }
    }

    pub fn peek_each(&self, charges: &Split) -> Result<Vec<(&Child, Decision)>> {
        let peek = |(i, child): (usize, &'_ Child)| {
            let (key, weight) = charges.at(i);
            child.quiet_peek(key, weight)
        };
        self.children()?.iter().enumerate().map(|(i, child)| Ok((child, peek((i, child))?))).collect()
    }

    /// Returns the parts of a permit; `None` if it has ended, or belongs to the parent.
    pub fn found(&self, permit: &RawPermit) -> Option<Out> {
        let number = self.own(permit).ok()?;
        self.out.lock().get(number).cloned()
    }

    /// Forgets a permit and returns its parts, which the caller has to end.
    pub fn take(&self, permit: &RawPermit) -> Result<Option<Out>> {
        let number = self.own(permit)?;
        Ok(self.out.lock().remove(number))
    }

    /// Ends each part of a permit, continuing after a failure; the first error is returned. Parts that would have to
    /// wait, where that is not allowed, are left for the repeated call.
    pub fn end(&self, permit: &RawPermit, end: impl Fn(State, usize, &Child, &RawPermit) -> Result<()>) -> Result<()> {
        let number = self.own(permit)?;
        let Some(mut out) = self.out.lock().take(number) else { return Ok(()) };
        let mut ended = Ok(());
        out.parts.retain(|part| match end(out.state, part.child, &self.all()[part.child], &part.permit) {
            Err(Error::WouldWait) => true,
            answer => {
                ended = std::mem::replace(&mut ended, Ok(())).and(answer);
                false
            }
        });
        let is_left = !out.parts.is_empty();
        self.out.lock().put_back(number, is_left.then_some(out));
        if is_left { Err(Error::WouldWait) } else { ended }
    }

    /// Forgets places that other processes may still use.
    pub fn drop_parts(&self, out: Option<Out>) {
        out.iter().flat_map(|out| &out.parts).for_each(|part| self.all()[part.child].drop_place(&part.permit));
    }

    /// Collects a value from the parts of a permit.
    pub fn parts<R>(&self, permit: &RawPermit, f: impl Fn(&Child, &RawPermit) -> Option<R>) -> impl Iterator<Item = R> {
        let parts = self.found(permit).map(|out| out.parts).unwrap_or_default();
        parts.into_iter().filter_map(move |part| f(&self.all()[part.child], &part.permit))
    }

    pub fn each(&self, f: impl Fn(&Child) -> Result<()>) -> Result<()> {
        self.children()?.iter().try_for_each(f)
    }

    /// Calls a function for each child with its key, and collects the answers.
    pub fn each_key<R>(&self, key: &str, f: impl Fn(&Child, &str) -> Result<R>) -> Result<Vec<R>> {
        self.each_charge(key, 0, |child, (key, _)| f(child, key))
    }

    /// The same with its charge.
    pub fn each_charge<R>(
        &self,
        key: &str,
        weight: u64,
        f: impl Fn(&Child, (&str, u64)) -> Result<R>,
    ) -> Result<Vec<R>> {
        let charges = self.split(key, weight)?;
        self.children()?.iter().enumerate().map(|(i, child)| f(child, charges.at(i))).collect()
    }

    /// Presents a place with this call, which leaves what it holds, and returns how long it has to wait, if it does. A
    /// place that was used before is reserved `again`.
    pub fn present(
        &self,
        place: &RawPermit,
        again: impl FnOnce(Wish, When) -> Result<Reserved>,
        present: impl FnOnce(&Wish, &mut Vec<Part>) -> Result<Option<Duration>>,
    ) -> Result<Presented> {
        let number = self.own(place)?;
        let (wish, held) = {
            let mut table = self.out.lock();
            let found = table.get_mut(number).ok_or_else(gone)?;
            let wish = found.wish.clone().ok_or_else(gone)?;
            let held = (found.state == State::Place).then(|| std::mem::take(&mut found.parts));
            if held.is_some() {
                found.state = State::Presented;
            }
            (wish, held)
        };
        let Some(mut held) = held else {
            // It was used before, or another thread is presenting it now.
            let wish = Wish { key: wish.key.clone(), ..*wish };
            let when = When { delay: Duration::ZERO, max_wait: None, grace: wish.grace, is_waiter: true };
            return Ok(match again(wish, when)? {
                Reserved::Place { place, after } => Presented::Wait { place, after },
                Reserved::Denied(after) => Presented::Wait { place: *place, after },
            });
        };
        let presented = present(&wish, &mut held);
        let state = if matches!(presented, Ok(None)) { State::Started } else { State::Place };
        let mut table = self.out.lock();
        let Some(found) = table.get_mut(number) else {
            // It has ended in the meantime.
            drop(table);
            let cancelled = end_all(self.all(), &held, |child, permit| match state {
                State::Started => child.cancel(permit),
                _ => child.cancel_place(permit),
            });
            return cancelled.and_then(|()| Err(gone()));
        };
        let place = self.permit(number, self.chosen_of(&held));
        (found.parts, found.state) = (held, state);
        Ok(match presented? {
            None => Presented::Started(place),
            Some(after) => Presented::Wait { place, after },
        })
    }

    /// Lists the limits of all children, each once.
    pub fn list_limits(&self, all: &mut Vec<(usize, Arc<str>)>) {
        let mut own = Vec::new();
        self.all().iter().for_each(|child| child.list_limits(&mut own));
        // Alternatives may share a limit.
        own.sort_unstable();
        own.dedup();
        all.append(&mut own);
    }

    /// Returns the key and the weight that a start charges the limit with this name, if it is one of these.
    pub fn charge_at(&self, limit: &str, (key, weight): (&str, u64)) -> Option<(String, u64)> {
        if *self.base.name == *limit {
            return Some((own_key(key).to_owned(), weight));
        }
        let charges = self.split(key, weight).ok()?;
        self.all().iter().enumerate().find_map(|(i, child)| child.charge_at(limit, charges.at(i)))
    }

    pub fn waits_for_ends(&self) -> bool {
        self.all().iter().any(|child| child.waits_for_ends())
    }

    pub fn is_over(&self, permit: &RawPermit) -> bool {
        self.found(permit).is_none_or(|out| are_over(self.all(), &out.parts))
    }

    pub fn contains(&self, group: u64) -> bool {
        self.base.id == group || self.all().iter().any(|child| child.contains(group))
    }

    pub fn depth(&self) -> usize {
        1 + self.all().iter().map(|child| child.depth()).max().unwrap_or(0)
    }

    pub fn lower(&self, above: usize) {
        if self.above.fetch_max(above, Relaxed) < above {
            self.all().iter().for_each(|child| child.lower(above + 1));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut list = *self.children.get_mut();
        while !list.is_null() {
            // SAFETY: made by `extend`; no other thread can be reading it any more.
            let this = unsafe { Box::from_raw(list) };
            list = this.before;
        }
    }
}

/// Ends all parts, continuing after a failure; the first error is returned.
pub fn end_all(children: &[Child], parts: &[Part], end: impl Fn(&Child, &RawPermit) -> Result<()>) -> Result<()> {
    parts.iter().map(|part| end(&children[part.child], &part.permit)).fold(Ok(()), Result::and)
}

pub fn gone() -> Error {
    Error::invalid("place", "used, given back or of another process", "a place that is still held")
}

/// Returns what a permit says about alternatives: [`CompositePermit::chosen`].
pub fn chosen(permit: &RawPermit) -> u64 {
    if let Some(Kind::Composite(CompositePermit { chosen, .. })) = permit.kind() { chosen } else { 0 }
}

/// The bits of an index in [`CompositePermit::chosen`].
const BITS: u32 = 16;

/// The most alternatives.
pub const MOST: usize = (1 << BITS) - 1;

/// The deepest nesting: calls use the stack.
const DEEPEST: usize = 32;

/// What is behind a limiter with a `group`: what is behind all of its children.
macro_rules! behind_group {
    ($limiter:ident) => {
        impl $crate::limiter::internal::Behind for $limiter {
            #[inline(always)]
            fn base(&self) -> &$crate::limiter::internal::Base {
                &self.group.base
            }

            fn is_shared(&self) -> bool {
                self.group.has_shared()
            }

            fn list_limits(&self, all: &mut Vec<(usize, std::sync::Arc<str>)>) {
                self.group.list_limits(all);
            }

            fn has_hooks(&self) -> bool {
                self.group.base.hooks.are_any() || self.group.all().iter().any(|child| child.has_hooks())
            }

            fn stores(&self, all: &mut Vec<std::sync::Arc<$crate::state::Session>>) {
                self.group.all().iter().for_each(|child| child.stores(all));
            }

            fn closed_store(&self) -> Option<$crate::error::Error> {
                self.group.all().iter().find_map(|child| child.closed_store())
            }

            fn notify(&self, event: &$crate::hooks::Event) -> bool {
                let is_of_a_child = self.group.all().iter().any(|child| child.notify(event));
                if is_of_a_child {
                    self.group.base.hooks.call(event);
                }
                is_of_a_child
            }

            fn manual_clock(&self) -> Option<$crate::time::ManualClock> {
                self.group.all().iter().find_map(|child| child.manual_clock())
            }

            fn has_custom(&self) -> bool {
                self.group.all().iter().any(|child| child.has_custom())
            }

            fn is_due(&self) -> bool {
                self.group.all().iter().any(|child| child.is_due())
            }

            fn look_after(&self) {
                self.group.all().iter().filter(|child| child.is_due()).for_each(|child| child.look_after());
            }
        }
    };
}
pub(in crate::limiter) use behind_group;

/// What those that contain a limiter with a `group` ask of it, for its [`Nested`](crate::limiter::internal::Nested).
macro_rules! nested_in_group {
    () => {
        fn waits_for_ends(&self) -> bool {
            self.group.waits_for_ends()
        }

        fn is_over(&self, permit: &$crate::permit::RawPermit) -> bool {
            self.group.is_over(permit)
        }

        fn contains(&self, group: u64) -> bool {
            self.group.contains(group)
        }

        fn charge_at(&self, limit: &str, start: (&str, u64)) -> Option<(String, u64)> {
            self.group.charge_at(limit, start)
        }

        fn depth(&self) -> usize {
            self.group.depth()
        }

        fn lower(&self, above: usize) {
            self.group.lower(above);
        }
    };
}
pub(in crate::limiter) use nested_in_group;
