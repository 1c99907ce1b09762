//! One limit with a budget for each tenant, and a larger budget for one of them.
//!
//! `cargo run --example per_tenant`

use workglow_limit::{Limiter, Result, Store};

/// Makes four calls for a tenant, and returns how many were admitted.
fn call(api: &dyn Limiter, tenant: &str) -> Result<usize> {
    let mut admitted = 0;
    for _ in 0..4 {
        admitted += usize::from(api.decide(tenant, 1)?.admitted);
    }
    Ok(admitted)
}

fn main() -> Result<()> {
    let store = Store::new("memory:")?;
    let api = store.limiter("api", "3/1h")?;

    // The key is the tenant. A key takes memory while its starts count, and needs no declaration.
    assert_eq!(call(&*api, "acme")?, 3);
    assert_eq!(call(&*api, "zeta")?, 3);

    // What an operator would do with the command `workglow-limit override`. Earlier starts count.
    store.override_key("api", "10/1h", "acme")?;
    assert_eq!(call(&*api, "acme")?, 4);
    assert_eq!(call(&*api, "zeta")?, 0);

    for tenant in ["acme", "zeta"] {
        let stats = api.stats(tenant)?;
        println!("{tenant}: {} admitted, {} denied", stats.admitted, stats.denied);
    }
    Ok(())
}
