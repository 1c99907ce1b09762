//! The query string of a URL.

use super::guard::Refusal;
use crate::failure::Failure;

/// The parameters of a request: only known names, each at most once.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: Option<&str>, known: &[&str]) -> Result<Query, Refusal> {
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                let expected = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Refusal::bad(format!("parameter {name:?}: expected {expected}")));
            }
            if all.iter().any(|(before, _)| *before == name) {
                return Err(Refusal::bad(format!("parameter {name}: expected once")));
            }
            all.push((name.into_owned(), value.into_owned()));
        }
        Ok(Query(all))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.text(name).ok_or_else(|| Refusal::bad(format!("parameter {name}: missing")))
    }

    /// A whole number between `least` and `most`.
    pub fn number(&self, name: &str, default: u64, least: u64, most: u64) -> Result<u64, Refusal> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| Refusal::bad(format!("{name} is {text:?}: expected {least} to {most}")))
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        use crate::failure::Exit;
        use hyper::StatusCode;
        let status = match failure.exit {
            Exit::Unknown => StatusCode::NOT_FOUND,
            Exit::Usage => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal { hint: failure.hint, ..Refusal::new(status, failure.code, failure.message) }
    }
}
