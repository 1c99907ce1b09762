//! The sliding log against a model of it.

#[path = "reference/cases.rs"]
mod cases;
