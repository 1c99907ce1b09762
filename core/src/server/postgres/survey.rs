//! What is in use of many limits: one call of one function (`survey.sql`).

use super::value::{Value, int, ints, text};
use super::{Postgres, tick, uuid};
use crate::error::Result;
use crate::hash::Hash;
use crate::server::survey::{Found, FoundKey, Question};
use crate::time::Tick;
use std::time::Duration;

/// How many keys are examined of all limits together, and the least and the most of one limit.
const EXAMINED: usize = 8_192;
const EXAMINED_OF_ONE: (usize, usize) = (8, 1_024);

impl Postgres {
    pub(super) fn survey_all(
        &self,
        questions: &[Question],
        now: Option<Tick>,
        patience: Duration,
    ) -> Result<Vec<Found>> {
        let (least, most) = EXAMINED_OF_ONE;
        let examined = (EXAMINED / questions.len().max(1)).clamp(least, most);
        let places: Vec<Hash> = questions.iter().map(|of| Hash::parse(of.place).unwrap_or(Hash([0, 0]))).collect();
        let keys = || questions.iter().zip(1..).flat_map(|(of, i)| of.keys.iter().map(move |hash| (i, *hash)));
        let values = vec![
            Value::texts(questions.iter().map(|of| Some(of.limit))),
            Value::texts(questions.iter().map(|of| Some(of.family.letter()))),
            Value::uuids(places.iter().map(|place| Some(uuid(*place)))),
            Value::uuids(keys().map(|(_, hash)| Some(uuid(hash)))),
            Value::ints(keys().map(|(i, _)| Some(i))),
            tick(now),
            Value::int(Some(examined as i64)),
            Value::uuid(questions.first().and_then(|of| of.keys.first()).map(|no_key| uuid(*no_key))),
        ];
        let statement = "SELECT * FROM workglow_limit.survey($1, $2, $3, $4, $5, $6, $7, $8)";
        let rows = self.ask(statement, values, patience)?;
        let mut all: Vec<Found> = Vec::with_capacity(questions.len());
        for row in rows {
            let cell = |at: usize| row.get(at).and_then(Option::as_ref);
            let (number, hash) =
                (cell(0).and_then(int), cell(1).and_then(|hash| Some(u128::from_be_bytes(hash[..].try_into().ok()?))));
            let hash = hash.map(|hash| Hash([(hash >> 64) as u64, hash as u64]));
            let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
            let gate = cell(4).and_then(int).map_or(0, unsigned);
            let numbers: Vec<u64> = cell(5).and_then(ints).unwrap_or_default().into_iter().map(unsigned).collect();
            if number == Some(all.len() as i64 + 1) {
                let &[now, born, walked] = numbers.as_slice() else { return Err(self.makes_no_sense(row)) };
                let place = hash.unwrap_or(Hash([0, 0]));
                let keys = count(places[all.len()], place, walked, walked + 1 < examined as u64);
                let (policy, overriding) = (cell(2).and_then(text), cell(3).and_then(text));
                all.push(Found {
                    policy,
                    overriding,
                    now,
                    gate,
                    born,
                    keys,
                    place: place.to_string(),
                    states: Vec::new(),
                });
            } else if let (Some(found), Some(hash)) = (all.last_mut(), hash) {
                found.states.push(FoundKey { hash, own: cell(2).and_then(text), gate, numbers });
            }
        }
        if all.len() == questions.len() { Ok(all) } else { Err(self.makes_no_sense(all.len())) }
    }
}

/// Estimates a number of keys, of which this many are after `from`, up to `to`. Hashes are evenly distributed.
fn count(Hash([from, _]): Hash, Hash([to, _]): Hash, walked: u64, is_all: bool) -> u64 {
    match to.wrapping_sub(from) {
        part @ 1.. if !is_all => (u128::from(walked) * (1 << 64) / u128::from(part)) as u64,
        _ => walked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_by_their_distances() {
        let hash = |part: u64| Hash([part * (u64::MAX / 100), 7]);
        assert_eq!(count(hash(0), hash(50), 3, true), 3);
        assert_eq!(count(hash(0), hash(50), 1_000, false), 2_000);
        assert_eq!(count(hash(50), hash(50), 1_000, false), 1_000, "all around");
        let around = count(hash(95), hash(5), 1_000, false);
        assert!((9_999..10_002).contains(&around), "{around}");
    }
}
