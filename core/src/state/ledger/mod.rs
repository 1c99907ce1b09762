//! What is durable: the database with the policies and the ledger, what is gathered for it, and how a lane is filled
//! from it.
//!
//! A function here has a database and a home, and knows neither a session nor who may write. All wings above may call
//! it: under the structure lock, or with the right to write.

pub(super) mod changed;
pub(super) mod committed;
pub(super) mod database;
pub(super) mod declared;
pub(super) mod executions;
pub(super) mod gather;
pub(super) mod policies;
pub(super) mod recovery;
pub(super) mod restoring;
mod upgrade;
pub(super) mod verify_database;
