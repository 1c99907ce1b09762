//! Names the tests that this run leaves out because a feature is off. `cargo test` prints the reasons as ignored tests.

#[test]
#[cfg(not(feature = "fault-points"))]
#[ignore = "feature fault-points is off: tests that stop and kill processes inside a decision are left out"]
fn tests_with_fault_points() {}

#[test]
#[cfg(not(feature = "redis"))]
#[ignore = "feature redis is off: tests on a Redis server are left out"]
fn tests_on_redis() {}

#[test]
#[cfg(not(feature = "postgres"))]
#[ignore = "feature postgres is off: tests on a Postgres server are left out"]
fn tests_on_postgres() {}

#[test]
#[cfg(not(feature = "tower"))]
#[ignore = "feature tower is off: tests of its layer are left out"]
fn tests_of_the_layer() {}

#[test]
#[ignore = "models run under loom and shuttle: tests/torture/models quick"]
fn models_of_lock_free_code() {}

#[test]
#[ignore = "other languages, queues and frameworks: make test, or target/venv/bin/python tests/run.py SUITE"]
fn tests_of_other_languages() {}
