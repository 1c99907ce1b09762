//! What a start charges the parts of a limit, as words on the command line: `tokens=1200 tenant=acme`.
//!
//! ```text
//! word = KEY | PART "=" NUMBER | PART "=" TEXT | "weight." PART "=" NUMBER | "key." PART "=" TEXT | "key=" TEXT
//! ```
//!
//! A number is a part's weight, any other text its key. The longer forms, which are also the columns of traces, say which of both it
//! is. A limit without parts has a key only, and that may contain `=`.

use crate::failure::Failure;
use workglow_limit::{Charge, JointKey, Limiter};

/// The key of a start, and what it charges single parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Charges {
    pub key: Option<String>,
    parts: Vec<Charged>,
}

/// What one part is charged, if this differs from the start's own.
#[derive(Debug, PartialEq, Eq)]
struct Charged {
    part: String,
    key: Option<String>,
    weight: Option<u64>,
}

impl Charged {
    fn as_charge(&self) -> Charge<'_> {
        Charge { part: &self.part, key: self.key.as_deref(), weight: self.weight }
    }
}

impl Charges {
    /// Reads the words that follow the name of a limit with these parts.
    pub fn read(words: &[String], name: &str, parts: &[String]) -> Result<Charges, Failure> {
        let mut read = Charges::default();
        for word in words {
            match word.split_once('=') {
                Some((left, right)) if !parts.is_empty() => read.charge(word, left, right, parts)?,
                _ => read.own_key(word, word, name, parts)?,
            }
        }
        Ok(read)
    }

    /// The same for a call that takes no weights: what a part is given is its key, even if it is a number.
    pub fn read_keys(words: &[String], name: &str, parts: &[String]) -> Result<Charges, Failure> {
        let as_key = |word: &String| match word.split_once('=') {
            Some((part, _)) if parts.iter().any(|name| name == part) => format!("key.{word}"),
            _ => word.clone(),
        };
        let read = Charges::read(&words.iter().map(as_key).collect::<Vec<_>>(), name, parts)?;
        match read.parts.iter().find(|charged| charged.weight.is_some()) {
            Some(Charged { part, .. }) => {
                Err(Failure::usage(format!("part \"{part}\" has a weight: expected its key")))
            }
            None => Ok(read),
        }
    }

    fn charge(&mut self, word: &str, left: &str, right: &str, parts: &[String]) -> Result<(), Failure> {
        if right.is_empty() {
            return Err(Failure::usage(format!("\"{word}\" has no value: expected {EXAMPLE}")));
        }
        let is_part = |name: &str| parts.iter().any(|part| part == name);
        if left == "key" && !is_part(left) {
            return self.own_key(word, right, "", parts);
        }
        let explicit = left.split_once('.').filter(|(_, part)| is_part(part));
        match explicit {
            Some(("key", part)) => self.key_of(part, right),
            Some(("weight", part)) => self.weight_of(part, right),
            // The limiter refuses the name of a part that it does not have.
            _ if right.parse::<u64>().is_ok() || is_like_a_number(right) => self.weight_of(left, right),
            _ => self.key_of(left, right),
        }
    }

    fn own_key(&mut self, word: &str, key: &str, name: &str, parts: &[String]) -> Result<(), Failure> {
        if self.key.is_some() {
            return Err(Failure::usage(match parts {
                [] => format!("unexpected \"{word}\": only a key can follow \"{name}\", which has no parts"),
                _ => format!("unexpected \"{word}\": expected one key of the start, and {EXAMPLE}"),
            }));
        }
        self.key = Some(key.to_owned());
        Ok(())
    }

    fn key_of(&mut self, part: &str, key: &str) -> Result<(), Failure> {
        match self.part(part).key.replace(key.to_owned()) {
            None => Ok(()),
            Some(first) => Err(Failure::usage(format!("two keys of part \"{part}\": \"{first}\" and \"{key}\""))),
        }
    }

    fn weight_of(&mut self, part: &str, text: &str) -> Result<(), Failure> {
        let weight = weight(text).ok_or_else(|| {
            Failure::usage(format!("weight of part \"{part}\" is \"{text}\": expected a whole number from 1"))
                .hint(format!("a key that looks like a number is written key.{part}={text}"))
        })?;
        match self.part(part).weight.replace(weight) {
            None => Ok(()),
            Some(first) => {
                let wrong = Failure::usage(format!("two weights of part \"{part}\": {first} and {weight}"));
                Err(wrong.hint(format!("a key that is a number is written key.{part}={weight}")))
            }
        }
    }

    fn part(&mut self, name: &str) -> &mut Charged {
        let at = self.parts.iter().position(|charged| charged.part == name);
        let at = at.unwrap_or_else(|| {
            self.parts.push(Charged { part: name.to_owned(), key: None, weight: None });
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }

    /// The key with which a limiter makes this start.
    pub fn joint(&self, limiter: &dyn Limiter) -> Result<JointKey, Failure> {
        let names = limiter.part_names();
        let unknown = self.parts.iter().find(|charged| !names.contains(&charged.part));
        let charges: Vec<Charge> = self.parts.iter().map(Charged::as_charge).collect();
        limiter.joint(self.key.as_deref().unwrap_or(""), &charges).map_err(|error| match unknown {
            Some(Charged { part, .. }) => {
                Failure::from(error).hint(format!("a key of the start that contains = is written key={part}=…"))
            }
            None => error.into(),
        })
    }

    /// The key that a part is charged with, if there is one.
    pub fn key_at(&self, part: &str) -> Option<&str> {
        self.named(part).and_then(|charged| charged.key.as_deref()).or(self.key.as_deref())
    }

    /// The weight that a part is charged with, where the start's own is this.
    pub fn weight_at(&self, part: &str, own: u64) -> u64 {
        self.named(part).and_then(|charged| charged.weight).unwrap_or(own)
    }

    /// All keys that the start has.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.key.iter().chain(self.parts.iter().filter_map(|charged| charged.key.as_ref())).map(String::as_str)
    }

    fn named(&self, part: &str) -> Option<&Charged> {
        self.parts.iter().find(|charged| charged.part == part)
    }
}

/// What a word can be, in errors.
const EXAMPLE: &str = "a part's weight, such as tokens=1200, or its key, such as tenant=acme";

/// Reads a weight: a whole number from 1.
pub fn weight(text: &str) -> Option<u64> {
    text.parse().ok().filter(|weight| *weight > 0)
}

/// Whether a text was meant as a number: `-1`, `1.5`, `1e6`.
fn is_like_a_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str], parts: &[&str]) -> Result<Charges, String> {
        let own = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Charges::read(&own(words), "openai", &own(parts)).map_err(|failure| failure.message)
    }

    #[test]
    fn a_number_is_a_weight_and_any_other_text_a_key() {
        let parts = ["tokens", "tenant", "key"];
        let seen = |words: &[&str]| {
            let read = read(words, &parts).unwrap();
            let of = |part: &str| (read.key_at(part).map(str::to_owned), read.weight_at(part, 3));
            (of("tokens"), of("tenant"))
        };
        let key = |text: &str| Some(text.to_owned());
        assert_eq!(seen(&["tokens=1200", "tenant=acme"]), ((None, 1_200), (key("acme"), 3)));
        assert_eq!(seen(&["a", "tenant=5", "tenant=b=c"]), ((key("a"), 3), (key("b=c"), 5)));
        assert_eq!(seen(&["key.tenant=42", "weight.tokens=7"]), ((None, 7), (key("42"), 3)));
        assert_eq!(seen(&["key=42"]), ((None, 3), (None, 3)), "the part that is called so");
        let own = |text: &str| text.to_owned();
        let keys = Charges::read_keys(&[own("a"), own("tenant=42")], "openai", &parts.map(own)).unwrap();
        assert_eq!((keys.key_at("tenant"), keys.key_at("tokens")), (Some("42"), Some("a")));
        // Ids may begin with digits.
        assert_eq!(seen(&["tenant=3f2a-11"]), ((None, 3), (key("3f2a-11"), 3)));
    }

    #[test]
    fn keys_may_contain_an_equals_sign() {
        let own = |words: &[&str], parts: &[&str]| read(words, parts).unwrap().key.unwrap();
        assert_eq!(own(&["YWNtZQ=="], &[]), "YWNtZQ==");
        assert_eq!(own(&["key=YWNtZQ=="], &["tokens"]), "YWNtZQ==");
    }

    #[test]
    fn what_is_neither_is_an_error() {
        for (words, parts, says) in [
            (["a", "b"].as_slice(), ["tokens"].as_slice(), "unexpected \"b\""),
            (&["a", "tokens=5"], &[], "no parts"),
            (&["tokens="], &["tokens"], "\"tokens=\" has no value"),
            (&["tokens=0"], &["tokens"], "weight of part \"tokens\" is \"0\""),
            (&["tokens=-1"], &["tokens"], "is \"-1\""),
            (&["tokens=1.5"], &["tokens"], "is \"1.5\""),
            (&["tokens=99999999999999999999"], &["tokens"], "expected a whole number from 1"),
            (&["weight.tokens=many"], &["tokens"], "is \"many\""),
            (&["tokens=1", "tokens=2"], &["tokens"], "two weights of part \"tokens\": 1 and 2"),
            (&["tokens=a", "key.tokens=b"], &["tokens"], "two keys"),
        ] {
            let error = read(words, parts).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
