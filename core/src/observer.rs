//! Snapshots of a store without taking part in its decisions: for command lines, metrics and pages.

use crate::error::Result;
use crate::limiter::unsupported;
use crate::policy;
use crate::snapshot::{LineSnapshot, Minute, Snapshot};
use crate::state::{Store, Survey};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Takes [`Snapshot`]s of a store. An observer makes no decisions, and adds no cost to those of others.
///
/// The cost of a snapshot is bounded for any number of keys: it reads the recently used keys and some thousand others, each time the
/// next ones. On a server, a snapshot takes two requests for all limits together (in a cluster, one to each node and one more).
pub struct Observer {
    store: Store,
    keys: usize,
    survey: Survey,
}

impl Observer {
    /// Creates an observer whose snapshots have at most `keys` keys of each limit.
    pub fn new(store: &Store, keys: usize) -> Observer {
        Observer { store: store.clone(), keys, survey: Survey::default() }
    }

    /// Shows this key in each snapshot if it is in use, even if `keys` others are busier.
    pub fn seek(mut self, key: &str) -> Observer {
        self.survey.sought = Some(key.to_owned());
        self
    }

    /// Shows only the limit of this name and those that are named `name/…`, as the parts of a composite are. The cost of a
    /// snapshot is then that of these, however many limits the store has.
    pub fn only(mut self, name: &str) -> Observer {
        self.survey.only = Some(name.to_owned());
        self
    }

    /// Takes a snapshot. Like [`Store::names`], it knows this process's limiters before their first use.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn look(&mut self) -> Result<Snapshot> {
        let session = self.store.session();
        session.check_open()?;
        let seen = session.knowing_all(|| match session.server() {
            Some(_) => session.survey_server(&mut self.survey, self.keys),
            None => session.survey(&mut self.survey, self.keys),
        });
        session.report("", seen)
    }

    /// Shows who has the units of a limit and key, and who waits for them: whose turn is next. For a limit that tenants share, the
    /// empty key is all of them. A part of several limits has a name of its own, such as `openai/tokens`.
    ///
    /// When one more start would begin is its [forecast](crate::Limiter::forecast).
    ///
    /// # Errors
    /// As for [`Store::find`]; [`Error::Unsupported`](crate::Error::Unsupported) on a server.
    pub fn line(&self, name: &str, key: &str) -> Result<LineSnapshot> {
        policy::check_name(name)?;
        policy::check_key(key)?;
        let session = self.store.session();
        session.check_open()?;
        if session.server().is_some() {
            return unsupported("line", "a limit on a server");
        }
        let seen = session.knowing(name, || session.survey_line(name, key));
        session.report("", seen)
    }

    /// Returns the counts of a limit for each minute since then that has any, oldest first, at most 31 days back. Without a database,
    /// there are at most the current and the previous minute. The current minute may lack the last second of other processes.
    ///
    /// # Errors
    /// As for [`Store::find`].
    pub fn history(&self, name: &str, since: SystemTime) -> Result<Vec<Minute>> {
        policy::check_name(name)?;
        let minute = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let now = minute(SystemTime::now());
        let from = minute(since).max(now.saturating_sub(31 * 24 * 60));
        let session = self.store.session();
        session.check_open()?;
        let all = session.report(name, session.minutes(name, from, now))?;
        let shown = |found: crate::state::Minute| Minute {
            at: UNIX_EPOCH + Duration::from_secs(60 * found.at),
            units: found.units,
            denied: found.denied,
            waited: found.waited,
            peak: found.peak,
        };
        Ok(all.into_iter().map(shown).collect())
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer of {}", self.store.url())
    }
}
