//! Where limits live: cells that processes share, the lock under which they are changed, and the durable database.
//!
//! The wings, bottom up. No file takes a name from a wing above its own:
//! * [`files`]: words that grow and never move, and the files that hold them;
//! * [`cells`]: what the words mean: homes, limits, keys;
//! * [`rare`]: the work on cells that needs the structure lock;
//! * [`counts`]: what is counted for observers;
//! * [`ledger`]: the database, and what is written there;
//! * [`session`]: an open store, and the lock;
//! * [`writer`]: who writes the ledger, and other work that needs that right;
//! * [`names`]: what names mean, and how that changes;
//! * [`survey`]: what observers read;
//! * [`limit`]: a limiter's handle on its limit;
//! * [`store`]: a store as programs use it.
//!
//! Nothing here depends on the limiters.

mod cells;
pub(crate) mod counts;
mod files;
mod ledger;
mod limit;
mod names;
mod rare;
mod session;
mod store;
mod survey;
mod writer;

pub(crate) use cells::heads::name_of;
pub(crate) use cells::home::{AtOnce, Blocked, Home, Table};
pub(crate) use cells::layout::LimitAt;
pub(crate) use cells::places::{
    as_counted_place, as_granted_place, is_counted_place, is_granted_place, without_grant, without_mark,
};
pub(crate) use counts::minutes::Minute;
pub(crate) use ledger::declared::{Declared, check_names, part_names, text_of};
pub use ledger::verify_database::Problem;
pub(crate) use limit::{Bound, Key, Limit, STORE_AGAIN, Stuck};
pub(crate) use rare::take_back::{owe, parts, settle_unknown, take_units};
pub(crate) use session::Session;
pub(crate) use session::closing::{Wake, Woken};
pub(crate) use session::ends::KeyEnds;
pub use session::options::{Durability, OnError, StoreOptions};
pub use store::{Store, doctor};
pub(crate) use survey::Survey;
pub(crate) use writer::unwritten::Unwritten;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// The wings are in the order of the list at the head of this file.
    #[test]
    fn no_file_takes_a_name_from_a_wing_above_its_own() {
        let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state");
        let list = fs::read_to_string(state.join("mod.rs")).unwrap();
        let wings: Vec<&str> = list
            .lines()
            .filter_map(|line| line.strip_prefix("//! * [`")?.split_once('`'))
            .map(|(wing, _)| wing)
            .collect();
        assert!(wings.len() > 8, "{wings:?}");
        for (floor, wing) in wings.iter().enumerate() {
            let files = match fs::read_dir(state.join(wing)) {
                Ok(all) => all.map(|file| file.unwrap().path()).collect(),
                Err(_) => vec![state.join(wing).with_extension("rs")],
            };
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                let code = text.split("\nmod tests {").next().unwrap();
                for from in code.split("crate::state::").skip(1) {
                    let from = from.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                    let at = wings.iter().position(|wing| *wing == from);
                    assert!(at.is_some_and(|at| at <= floor), "{} takes from \"{from}\"", file.display());
                }
            }
        }
    }
}
