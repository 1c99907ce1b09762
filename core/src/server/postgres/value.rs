//! The parameters of statements and the cells of answers, in Postgres's binary format.

use bytes::{Bytes, BytesMut};
use postgres_protocol::Oid;

const INT8: Oid = 20;
const TEXT: Oid = 25;
const INT8S: Oid = 1016;
const TEXTS: Oid = 1009;
const UUID: Oid = 2950;
const UUIDS: Oid = 2951;

/// A parameter of a statement; `None` is null.
#[derive(Debug)]
pub(super) struct Value {
    pub kind: Oid,
    pub bytes: Option<Vec<u8>>,
}

impl Value {
    pub fn int(n: Option<i64>) -> Value {
        Value { kind: INT8, bytes: n.map(|n| n.to_be_bytes().to_vec()) }
    }

    pub fn text(text: &str) -> Value {
        Value { kind: TEXT, bytes: Some(text.as_bytes().to_vec()) }
    }

    pub fn uuid(uuid: Option<[u8; 16]>) -> Value {
        Value { kind: UUID, bytes: uuid.map(|uuid| uuid.to_vec()) }
    }

    pub fn ints(all: impl IntoIterator<Item = Option<i64>>) -> Value {
        Value { kind: INT8S, bytes: Some(array(INT8, all.into_iter().map(|n| n.map(|n| n.to_be_bytes().to_vec())))) }
    }

    pub fn texts<'t>(all: impl IntoIterator<Item = Option<&'t str>>) -> Value {
        Value { kind: TEXTS, bytes: Some(array(TEXT, all.into_iter().map(|text| text.map(|text| text.into())))) }
    }

    /// The values as returned by a server.
    pub fn uuids_of(cell: &Bytes) -> Value {
        Value { kind: UUIDS, bytes: Some(cell.to_vec()) }
    }

    pub fn uuids(all: impl IntoIterator<Item = Option<[u8; 16]>>) -> Value {
        Value { kind: UUIDS, bytes: Some(array(UUID, all.into_iter().map(|uuid| uuid.map(|uuid| uuid.to_vec())))) }
    }
}

/// A one-dimensional array.
fn array(kind: Oid, all: impl Iterator<Item = Option<Vec<u8>>>) -> Vec<u8> {
    let (mut count, mut items) = (0_i32, Vec::new());
    for item in all {
        count += 1;
        items.extend(item.as_ref().map_or(-1, |bytes| bytes.len() as i32).to_be_bytes());
        items.extend(item.unwrap_or_default());
    }
    // The number of dimensions, whether there are nulls, the element type, the length, and the first index.
    let head = [i32::from(count > 0), 1, kind as i32].into_iter().chain([count, 1].into_iter().filter(|_| count > 0));
    head.flat_map(i32::to_be_bytes).chain(items).collect()
}

/// A cell that is a number.
pub(super) fn int(cell: &Bytes) -> Option<i64> {
    Some(i64::from_be_bytes(cell[..].try_into().ok()?))
}

/// A cell that is an array of numbers, none of them null.
pub(super) fn ints(cell: &Bytes) -> Option<Vec<i64>> {
    let mut rest = BytesMut::from(&cell[..]);
    let mut word = || (rest.len() >= 4).then(|| rest.split_to(4)).and_then(|word| word[..].try_into().ok());
    let mut word = || Some(i32::from_be_bytes(word()?));
    let (dimensions, _, kind) = (word()?, word()?, word()?);
    if kind as Oid != INT8 || dimensions != 1 {
        return None;
    }
    let (count, _) = (word()?, word()?);
    let items = cell.get(20..)?;
    let is_whole = items.len() == usize::try_from(count).ok()?.checked_mul(12)?;
    let item = |item: &[u8]| match item {
        [0, 0, 0, 8, number @ ..] => Some(i64::from_be_bytes(number.try_into().ok()?)),
        _ => None,
    };
    if is_whole { items.chunks(12).map(item).collect() } else { None }
}

/// A cell that is a text.
pub(super) fn text(cell: &Bytes) -> Option<String> {
    String::from_utf8(cell.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let sent = |all: &[i64]| Bytes::from(Value::ints(all.iter().copied().map(Some)).bytes.unwrap());
        for all in [&[7][..], &[-1, 0, i64::MAX, i64::MIN]] {
            assert_eq!(ints(&sent(all)).as_deref(), Some(all));
        }
        let whole = sent(&[1, 2]);
        for end in 0..whole.len() {
            assert_eq!(ints(&whole.slice(..end)), None, "{end}");
        }
    }
}
