//! A block that becomes that of a new key.

use super::block::BlockCells;
use super::home::{KeyAt, Table};
use super::layout::{key_word, table_word};
use crate::algorithm::log::CLOSED;
use crate::algorithm::{Forgotten, History, Start};
use crate::atomic::*;
use crate::damage::nonsense;
use crate::hash::Hash;
use crate::time::Now;

impl BlockCells<'_> {
    /// Turns a block that only the caller uses into the block of a new key, with these starts that have no holder. `None`
    /// if the block has used up its lives and is lost.
    pub(in crate::state) fn begin(self, table: &Table, hash: Hash, text: &str, starts: &[Start]) -> Option<KeyAt> {
        let is_new = self.is_new();
        let now = self.home.clock.now();
        let end = self.home.arena.word(table.at + table_word::FIRST_TICKET).load(Relaxed);
        // So fences only grow, even if the key was forgotten in between: no key gets 64 units per microsecond. (If all keys
        // are cleared while a manual clock stands still, the tickets of the tables still grow.)
        let end = end + if table.policy.is_concurrency() { self.home.unix_time(now.ceil) << 6 } else { 0 };
        // The ledger does not say by which policy it was.
        let is_mixed = !starts.is_empty();
        let mut history = History { end, is_mixed, ..History::default() };
        if !starts.is_empty() {
            history.add_logged(starts);
        }
        self.home.of(table).lost(now).into_iter().for_each(|lost| history.add_unlogged(lost));
        if !(is_new && history.starts.is_empty()) && table.born > 0 && table.born + table.policy.longest() > now.floor {
            // Unused cells count from then on without this.
            history.forgotten.push(Forgotten::before(table.born));
            history.pad(table.policy.largest(), table.policy.counts_since(now));
        }
        self.begin_with(table, (hash, text), (&history, now))
    }

    /// The same, with a history.
    pub(in crate::state) fn begin_with(
        self,
        table: &Table,
        (hash, text): (Hash, &str),
        (history, now): (&History, Now),
    ) -> Option<KeyAt> {
        let life = self.word(key_word::LIFE);
        let is_new = self.is_new();
        if table.policy.is_counted() {
            // No earlier one, and after all tickets of before a clear: permits of starts that were cleared mean nothing.
            let era = history.end + self.home.new_number();
            self.word(key_word::OWN).store(era, Release);
            self.word(key_word::FIRST_ERA).store(era, Release);
        }
        let is_fresh = history.starts.is_empty()
            && (history.end == 0 || table.policy.is_counted() || table.policy.is_concurrency());
        if is_new && table.policy.is_concurrency() {
            self.word(key_word::BASE).store(history.end, Release);
        }
        if is_new && is_fresh {
            self.set_name(table, hash, text);
            return Some(KeyAt { at: self.at, life: life.load(Relaxed), table: table.at });
        }
        life.store(CLOSED, Release);
        self.set_name(table, hash, text);
        let others = [key_word::GATE, key_word::BACKOFF, key_word::SPACING, key_word::JOBS, key_word::LISTED];
        for word in others.into_iter().chain(key_word::COUNTS) {
            self.word(word).store(0, Release);
        }
        match self.write_history(table, (history, now)) {
            None if is_new => nonsense(format_args!("an invalid new key of the table at {}", table.at)),
            base => base.map(|base| self.publish(table, base)),
        }
    }

    /// Each store releases, after the block was closed: see `Log::write`.
    pub(in crate::state) fn set_name(self, table: &Table, hash: Hash, text: &str) {
        for (i, word) in hash.0.into_iter().enumerate() {
            self.word(key_word::HASH + i as u64).store(word, Release);
        }
        self.set_table(table);
        let mut end = text.len().min(8 * key_word::TEXT_WORDS as usize - 2);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; 8 * key_word::TEXT_WORDS as usize];
        bytes[0] = end as u8;
        bytes[1] = u8::from(end < text.len());
        bytes[2..2 + end].copy_from_slice(&text.as_bytes()[..end]);
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            self.word(key_word::TEXT + i as u64).store(word, Release);
        }
    }
}
