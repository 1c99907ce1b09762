//! Where a store is, as people who cannot open it need to know.

use workglow_limit::Error;

/// What to do about an error of the store at this address.
pub fn hint(_error: &Error, _url: &str) -> Option<String> {
    None
}
