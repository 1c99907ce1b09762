//! A limit of 100 starts in any rolling minute, which all processes share that open the same store.
//!
//! `cargo run --example first_use [STORE]`, such as `memory:`. Without an argument it is the file `limits.db` here.

use workglow_limit::{Result, Store};

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "sqlite:limits.db".to_owned());
    let openai = Store::new(&address)?.limiter("openai", "100/1m")?;

    // Now or not at all; no key, weight 1.
    match openai.try_acquire("", 1)? {
        Some(permit) => {
            println!("call the API");
            permit.complete()?; // As dropping it, but it returns errors.
        }
        None => println!("full; try again in {:?}", openai.peek("", 1)?.retry_after),
    }

    let seen = openai.peek("", 1)?;
    println!("{} of {} left", seen.remaining, seen.limit);
    Ok(())
}
