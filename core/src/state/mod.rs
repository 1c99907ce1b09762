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

pub(crate) use cells::home::{AtOnce, Blocked, Home, Table};
pub(crate) use cells::places::{
    as_counted_place, as_granted_place, is_counted_place, is_granted_place, without_grant, without_mark,
};
pub(crate) use counts::minutes::Minute;
pub(crate) use ledger::declared::{Declared, check_names, part_names, text_of};
pub use ledger::verify_database::Problem;
pub(crate) use limit::{Bound, Key, Limit, STORE_AGAIN, Stuck};
pub(crate) use rare::take_back::{parts, take_units};
pub(crate) use session::Session;
pub use session::options::{Durability, OnError, StoreOptions};
pub use store::{Store, doctor};
pub(crate) use survey::Survey;
pub(crate) use writer::unwritten::Unwritten;
