//! Where limits live: cells that processes share, the lock under which they are changed, and the durable database.
//!
//! The modules, bottom up:
//! * words: `arena` (memory that grows and never moves), `layout` (the meaning of each word);
//! * limits and keys in those words: `table`, `index`, `block`, `space`, `rewrite`;
//! * files: `lane`, `database`, `policies`, `ledger`, `moves`, `committed`;
//! * the lane and the database together: `session`, `changed`, `gather`, `writer`, `recovery`, `restoring`, `declare`, `follow`;
//! * a limiter's handle on its limit: `limit`.
//!
//! Nothing here depends on the limiters.

mod arena;
mod attach;
mod block;
mod changed;
mod committed;
mod counting;
pub(crate) mod counts;
mod database;
mod declare;
mod declared;
mod fcntl;
mod files;
mod follow;
mod gather;
mod grant_lane;
mod home;
mod index;
mod keyed;
mod knowing;
mod lane;
mod layout;
mod ledger;
mod limit;
mod limits;
mod locked;
mod made;
mod members;
mod minutes;
mod moves;
mod options;
mod places;
mod policies;
mod presence;
mod record;
mod recovery;
mod registry;
mod replace;
mod restore;
mod restoring;
mod rewrite;
mod session;
mod space;
mod store;
mod survey;
mod table;
mod take_back;
mod unwritten;
pub(crate) mod verify;
mod verify_database;
mod wanted;
mod writer;

pub(crate) use declared::{Declared, check_names, part_names, text_of};
pub(crate) use home::{AtOnce, Blocked, Home, Table};
pub(crate) use limit::{Bound, Key, Limit, STORE_AGAIN, Stuck};
pub(crate) use minutes::Minute;
pub use options::{Durability, OnError, StoreOptions};
pub(crate) use places::{
    as_counted_place, as_granted_place, is_counted_place, is_granted_place, without_grant, without_mark,
};
pub(crate) use session::Session;
pub use store::{Store, doctor};
pub(crate) use survey::Survey;
pub(crate) use take_back::{parts, take_units};
pub(crate) use unwritten::Unwritten;
pub use verify_database::Problem;
