//! The commands that read a store, or change it.

pub mod change;
pub mod doctor;
pub mod forecast;
pub mod load;
pub mod peek;
pub mod shell;
pub mod show;
pub mod status;
pub mod verify;
pub mod watch;
