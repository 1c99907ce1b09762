//! Token buckets and leaky buckets: the moment at which all starts have been recovered, as an exact fraction.

use super::frame::{Ask, ENDLESS, Now, Permit, Rules, Start, Tick, length};
use super::log::next_id;
use super::run::duration;
use crate::common::Random;
use workglow_limit::Policy;

#[derive(Debug)]
pub struct Book {
    /// In parts of a microsecond.
    recovered: Tick,
    /// Permits of another era have no meaning any more.
    era: u64,
    /// The latest stamp of any admitted start, and of any end.
    last: Tick,
    /// The total ever returned, in microseconds, rounded up.
    returned: Tick,
    /// Like `recovered`, for the amount taken over from a bucket of another policy, as far as it was not returned.
    carried: Tick,
    /// A recovered key may be forgotten, and with it `last`, which has not come yet.
    is_unsure: bool,
}

impl Default for Book {
    fn default() -> Self {
        Book { recovered: 0, era: next_id(), last: 0, returned: 0, carried: 0, is_unsure: false }
    }
}

/// `n` parts make a microsecond, and a unit costs `p`: the rate in lowest terms.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket<const LEAKY: bool> {
    rate: u64,
    period: Tick,
    size: u64,
    n: Tick,
    p: Tick,
}

/// From here down, how long a bucket had been idle.
const IDLE: Tick = -1;

fn gcd(a: Tick, b: Tick) -> Tick {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn divide_up(a: Tick, b: Tick) -> Tick {
    a.div_euclid(b) + Tick::from(a.rem_euclid(b) != 0)
}

impl<const LEAKY: bool> Bucket<LEAKY> {
    fn cost(&self, units: u64) -> Tick {
        Tick::from(units) * self.p
    }

    fn behind(&self, book: &Book, at: Tick) -> Tick {
        (book.recovered - at * self.n).max(0)
    }

    /// Edits a book: what has recovered by now stays recovered, and nothing else.
    fn edit(&self, book: &mut Book, now: Now, f: impl FnOnce(&Self, &mut Book)) {
        book.recovered = book.recovered.max(now.floor * self.n);
        book.last = book.last.max(now.ceil);
        f(self, book);
        book.carried = book.carried.min(book.recovered);
        if self.behind(book, now.floor) == 0 {
            book.era = next_id();
        }
    }

    /// Returns units of a start, except those that have returned over time since then and may have been used: counted
    /// from the latest start, how much later everything was than without this start.
    fn give_back(&self, book: &mut Book, permit: &Permit, units: u64, now: Now) {
        let moved = permit.stamp * self.n + self.cost(permit.weight);
        if permit.ahead <= IDLE && units == permit.weight && book.recovered == moved {
            // Nothing was started since: as if it had not been taken.
            let before = ((permit.stamp + permit.ahead - IDLE) * self.n).max(now.floor * self.n);
            book.last = book.last.min(divide_up((permit.stamp + permit.ahead - IDLE) * self.n, self.n) + 1);
            book.returned += divide_up(book.recovered - before, self.n);
            book.recovered = before;
            return;
        }
        let lead = (permit.ahead - book.returned).max(0);
        let gone = ((book.last - permit.stamp - lead) * self.n).max(0);
        let back = self.cost(units).min(self.cost(permit.weight) - gone);
        let back = back.clamp(0, self.behind(book, now.floor));
        book.recovered -= back;
        book.returned += divide_up(back, self.n);
    }
}

impl<const LEAKY: bool> Rules for Bucket<LEAKY> {
    type Book = Book;
    const COUNTED: bool = true;

    fn random(random: &mut Random, scale: Tick) -> Self {
        let most = random.pick(&[1, 3, 8, 8, 20, 40]);
        let (rate, period, size) = (1 + random.below(most), length(random, scale), 1 + random.below(most));
        let shared = gcd(rate.into(), period);
        Bucket { rate, period, size, n: Tick::from(rate) / shared, p: period / shared }
    }

    fn policy(&self) -> Policy {
        let new = if LEAKY { Policy::leaky_bucket } else { Policy::token_bucket };
        new(self.rate, duration(self.period), self.size).unwrap()
    }

    fn capacity(&self) -> u64 {
        self.size
    }

    fn lengths(&self) -> (Tick, Tick) {
        (divide_up(self.p, self.n), divide_up(self.cost(self.size + 1), self.n))
    }

    /// A fortieth of a unit's cost, or what delays no other caller; at most 50 ms.
    fn grace(&self, _: &Book, weight: u64) -> Tick {
        let unit = self.period / Tick::from(self.rate);
        let free = if LEAKY { 0 } else { Tick::from(self.size.saturating_sub(weight)) * unit };
        free.max(unit / 40).min(50_000)
    }

    fn grace_again(&self, place: &Permit) -> Tick {
        (place.stamp - place.ready.unwrap_or(0)).max(0)
    }

    fn ready(&self, book: &Book, weight: u64, gate: Tick, _: Now) -> Tick {
        let slack = if LEAKY { 0 } else { self.cost(self.size.saturating_sub(weight)) };
        divide_up(book.recovered - slack, self.n).max(gate)
    }

    /// No caller waits longer than 366 days.
    fn patience(&self, asked: Tick) -> Tick {
        asked.min(366 * 86_400_000_000)
    }

    /// Only this many units wait for a leaky bucket, including this start and the graces of all, behind one that has
    /// just started, or behind a gate.
    fn turned_away(&self, book: &Book, ask: &Ask, now: Now) -> Option<Tick> {
        let graces = Tick::from(self.size - ask.weight) * ask.grace * self.n;
        let from = book.recovered - self.cost(self.size + 1 - ask.weight) - graces;
        let reached = (now.floor * self.n).max(ask.gate * self.n - self.p);
        (LEAKY && !ask.is_exchanged && from > reached).then(|| divide_up(from, self.n))
    }

    fn remaining(&self, book: &Book, now: Now) -> u64 {
        match self.behind(book, now.floor) {
            0 => self.size,
            _ if LEAKY => 0,
            behind => ((self.cost(self.size) - behind).max(0) / self.p) as u64,
        }
    }

    /// The current microsecond counts as over.
    fn left(&self, book: &Book, before: u64, weight: u64, now: Now) -> u64 {
        let then = Now { floor: now.ceil, ..now };
        before.saturating_sub(weight).min(self.remaining(book, then))
    }

    fn empty(&self, book: &Book) -> Tick {
        divide_up(book.recovered, self.n)
    }

    fn record(&self, book: &mut Book, ask: &Ask, ready: Tick, is_place: bool, now: Now) -> Start {
        let stamp = if is_place { ready.max(now.ceil) + ask.grace } else { now.ceil };
        let behind = book.recovered - stamp * self.n;
        let ahead = match is_place && behind <= 0 {
            // It had recovered so much before the place.
            true => IDLE - (stamp * self.n - book.recovered.max(now.floor * self.n)) / self.n,
            false => behind.max(0) / self.n + book.returned,
        };
        book.recovered = book.recovered.max(stamp * self.n) + self.cost(ask.weight);
        if is_place {
            book.last = book.last.max(stamp);
        }
        Start { id: book.era, stamp, ahead }
    }

    fn present(&self, book: &mut Book, place: &Permit, _: Now) -> Option<Tick> {
        (book.era == place.id).then_some(place.stamp)
    }

    fn cancel(&self, book: &mut Book, permit: &Permit, _: bool, now: Now) {
        // Where the past may have been forgotten, it does not matter to the last start.
        let is_last = book.era == permit.id && permit.stamp >= book.last.max(now.ceil);
        let is_known = (is_last || self.has(book, permit)) && self.behind(book, now.floor) > 0;
        self.edit(book, now, |bucket, book| {
            if is_known {
                bucket.give_back(book, permit, permit.weight, now);
            }
        });
    }

    fn settle(&self, book: &mut Book, permit: &Permit, actual: u64, is_over: bool, now: Now) {
        let is_known = book.era == permit.id && self.behind(book, now.floor) > 0;
        self.edit(book, now, |bucket, book| {
            if is_known {
                bucket.give_back(book, permit, permit.weight.saturating_sub(actual), now);
            }
            let debt = actual.saturating_sub(permit.weight).min(bucket.size);
            if debt > 0 && (is_known || is_over) {
                book.recovered = book.recovered.max(now.ceil * bucket.n) + bucket.cost(debt);
            }
        });
    }

    /// Whole units and a part of one become whole units and the same part of one of the new bucket.
    fn change(&self, to: &Self, book: Book, now: Now) -> Book {
        let behind = self.behind(&book, now.floor);
        if behind == 0 {
            return Book { is_unsure: true, last: book.last, returned: book.returned, ..Book::default() };
        }
        let units = divide_up(behind, self.p);
        let spare = (units * self.p - behind) * to.p / self.p;
        // Earlier starts, amounts taken over before, and debts. Waiters behind a gate are not carried over.
        let carried = divide_up((book.carried - now.floor * self.n).max(0), self.p);
        let units = units.min(carried.max(self.size.into()) + Tick::from(self.size));
        let recovered = now.floor * to.n + units * to.p - spare;
        Book { recovered, era: next_id(), last: book.last.max(now.ceil), carried: recovered, ..book }
    }

    fn forget(&self, book: &mut Book, now: Now) -> Tick {
        if self.behind(book, now.floor) == 0 {
            (book.era, book.is_unsure) = (next_id(), true);
        }
        book.is_unsure &= book.last > now.floor;
        -ENDLESS
    }

    fn keeps(&self, book: &Book) -> bool {
        book.is_unsure
    }

    fn has(&self, book: &Book, permit: &Permit) -> bool {
        book.era == permit.id && !book.is_unsure
    }
}
