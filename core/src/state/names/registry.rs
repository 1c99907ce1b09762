//! The declarations on a server, and this process's copy of them.
//!
//! A process stores what it needs of them as a memory store does. It asks the server before it declares, finds or
//! overrides anything, and sends its changes afterwards. Neither happens under the structure lock, so only the asking
//! caller waits for the server. Another process may make a conflicting change between the two. The server then has the
//! change that arrived last, and a process that decides by another one learns of it with the next decision: see
//! [`Session::follow_server`].

use crate::algorithm::grants::Lengths;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::{Hash, SERVER_SECRET, hasher};
use crate::os::random;
use crate::policy::{self, NamedPolicy, Policy};
use crate::server::{Engine, MAX, Row, RowChange};
use crate::state::cells::locked::Locked;
use crate::state::ledger::declared::{Declared, part_names};
use crate::state::names::follow::Known;
use crate::state::session::{Rare, Session};
use crate::time::{Tick, from_ticks};
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server's rows for a name.
type Rows = Vec<(String, Row)>;

/// A number that no other process has on a server.
pub(in crate::state) fn new_owner() -> Result<u64> {
    let [number, _] = random().map_err(|e| Error::store("asking the system for random numbers", e))?;
    Ok(number & MAX)
}

/// The rest of a timeout that is running.
pub(in crate::state) struct TimeLeft(Instant, Duration);

impl TimeLeft {
    pub fn new(session: &Session) -> Result<TimeLeft> {
        session.check_open()?;
        Ok(TimeLeft(Instant::now(), MayWait::part_for_server(session.options.timeout)?))
    }

    pub fn now(&self) -> Duration {
        self.1.saturating_sub(self.0.elapsed())
    }
}

impl Session {
    /// The server with the limits, if they are on one.
    #[inline(always)]
    pub fn server(&self) -> Option<&Arc<dyn Engine>> {
        self.server.as_ref()
    }

    /// The number of this process on a server. No other process has it.
    pub fn owner(&self) -> Result<u64> {
        let mut owner = self.owner.lock();
        if let Some(owner) = *owner {
            return Ok(owner);
        }
        Ok(*owner.insert(new_owner()?))
    }

    /// Runs a function under the structure lock with the declarations of these names, and sends its changes to the
    /// server.
    pub fn with_names<R>(&self, names: &[&str], f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_key_of_names(names, None, f)
    }

    /// Runs a function with the declarations of these names and the own policy of a key, if it has one.
    pub(super) fn with_key_of_names<R>(
        &self,
        names: &[&str],
        key: Option<&str>,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let Some(server) = self.server() else { return self.with_lock(f) };
        let left = TimeLeft::new(self)?;
        let rows = self.ask(server, names, key.map(|key| (hash_of(key), key)), &left)?;
        match self.with_rows(server, &rows, &left, f) {
            // This process may not know all names.
            Err(Error::UnknownLimit { name, .. }) => self.unknown_beside(&name, self.all_names()?),
            answer => answer,
        }
    }

    fn with_rows<R>(
        &self,
        server: &Arc<dyn Engine>,
        rows: &Rows,
        left: &TimeLeft,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let (answer, outbox) = self.with_lock_for(left.now(), |locked| {
            self.rare().merge(rows)?;
            let answer = f(locked);
            // Changes of a failed operation are not sent.
            let outbox = std::mem::take(&mut self.rare().outbox);
            Ok((answer?, outbox))
        })?;
        let clock = &self.home().clock;
        let now = clock.is_manual().then(|| clock.now().floor);
        let mut out = Duration::ZERO;
        fault::point("noting");
        for (row, changes) in outbox {
            let has_earlier = if changes.is_empty() {
                server.forget(&row, left.now())?;
                true
            } else {
                let noted = server.note(&row, &changes, now, left.now())?;
                self.was_made(&row, noted.made);
                noted.has_earlier
            };
            if now.is_none() && has_earlier {
                out = out.max(server.out(&row, left.now())?[1]);
            }
        }
        self.wait_for_grants(out);
        Ok(answer)
    }

    /// Waits until no machine decides by earlier grants. They may do so for this long after a change.
    pub fn wait_for_grants(&self, out: Duration) {
        std::thread::sleep(out.min(from_ticks(Lengths::MAX_TRUST)));
    }

    /// Asks for the declarations under these names, under the composites that they are parts of, and under their parts.
    fn ask(
        &self,
        server: &Arc<dyn Engine>,
        names: &[&str],
        key: Option<(Hash, &str)>,
        left: &TimeLeft,
    ) -> Result<Rows> {
        if self.home_number() == 0 {
            let now = server.time(left.now())?;
            let _ = self.server_time.set((Instant::now(), now));
        }
        let mut rows = Rows::new();
        let mut names: Vec<String> = names.iter().rev().map(|name| (*name).to_owned()).collect();
        while let Some(name) = names.pop() {
            if rows.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let read = |place: &str| server.row(place, key.map(|(hash, _)| hash), left.now());
            let mut row = self.places.read(&name, read)?;
            // A missing policy is an answer, too.
            if let (None, Some((_, key))) = (&row.key, key) {
                row.key = Some(format!("\n{key}"));
            }
            if let Some(text) = &row.composite {
                names.extend(part_names(&name, &policies(&name, text)?));
            }
            names.extend(name.rsplit_once('/').map(|(whole, _)| whole.to_owned()).filter(|whole| !whole.is_empty()));
            rows.push((name, row));
        }
        for (name, row) in &rows {
            row.made.into_iter().for_each(|made| self.was_made(&self.places.of(name), made));
        }
        Ok(rows)
    }

    fn was_made(&self, place: &str, tick: Tick) {
        if tick == 0 {
            return;
        }
        let mut all = self.made.lock();
        let made = all.entry(place.to_owned()).or_insert([tick; 2]);
        if std::mem::replace(&mut made[1], tick) != tick {
            drop(all);
            // What was learned is lost, too.
            self.forget_told(|name| self.places.of(name) == place);
        }
    }

    /// The creation time of the limit in a place that this process uses, by the server's first answer; 0 if there is none. If
    /// the server later reports another time, it has lost the limit in between.
    pub fn made(&self, place: &str) -> Tick {
        self.made.lock().get(place).map_or(0, |[first, _]| *first)
    }

    /// Applies the server's declarations of a limit and a key, after it has reported that another policy applies.
    pub fn follow_server(&self, name: &str, key: Hash, declares: Option<Policy>) -> Result<()> {
        let server = self.server().expect("only a server reports that");
        let left = TimeLeft::new(self)?;
        // The key's text may not be known here. Then there is nothing of it to forget.
        let rows = self.ask(server, &[name], Some((key, "")), &left)?;
        self.with_rows(server, &rows, &left, |locked| {
            let declared = self.declared(name)?;
            match (declared, declares) {
                (Some(found), _) => self.apply(name, Known::As(name), found.current(), locked)?,
                // The server has lost the limit, or another process has removed it.
                (None, Some(policy)) => return self.declare_all(&[(name, &[policy.into()])], locked),
                (None, None) => return self.unknown(name),
            }
            let of_key = rows.iter().find(|(found, _)| found == name).and_then(|(_, row)| row.key.as_deref());
            let (policy, text) = of_key.map_or(Ok((None, "")), |text| of_key_in(name, text))?;
            let limit = locked.find_limit(name).expect("the limit was just added");
            locked.set_plan(limit, (key, text), policy)
        })?;
        self.settle(&[name])
    }

    /// All names that the store knows, in order.
    pub fn all_names(&self) -> Result<Vec<String>> {
        let Some(server) = self.server() else { return self.with_lock(|_| self.names()) };
        let left = TimeLeft::new(self)?;
        let mut names = server.names(left.now())?;
        let wholes = names.iter().filter_map(|name| Some(name.rsplit_once('/')?.0)).filter(|whole| !whole.is_empty());
        let rows = self.ask(server, &wholes.collect::<Vec<_>>(), None, &left)?;
        let (mut wholes, mut parts) = (Vec::new(), Vec::new());
        for (name, text) in rows.iter().filter_map(|(name, row)| Some((name, row.composite.as_ref()?))) {
            parts.extend(part_names(name, &policies(name, text)?));
            wholes.push(name);
        }
        names.retain(|name| !parts.contains(name) && (wholes.contains(&name) || self.places.is_name(name)));
        // Beside the name before the slash, this may be only the place of a limit with another name.
        let whole = |name: &&String| name.rsplit_once('/').is_some_and(|(whole, _)| names.iter().any(|n| n == whole));
        let doubtful: Vec<&str> = names.iter().filter(whole).map(String::as_str).collect();
        let rows = self.ask(server, &doubtful, None, &left)?;
        let is_none = |name: &String| rows.iter().any(|(found, row)| found == name && *row == Row::default());
        names.retain(|name| !is_none(name));
        names.sort();
        Ok(names)
    }
}

impl Rare {
    /// Replaces the local copy by the server's rows.
    fn merge(&mut self, rows: &Rows) -> Result<()> {
        for (name, row) in rows {
            let declared = match &row.policy {
                Some(text) => Some(declared_by(name, text, row.overriding.as_deref())?),
                None => None,
            };
            match declared {
                Some(declared) => drop(self.limits.insert(name.clone(), declared)),
                None => drop(self.limits.remove(name)),
            }
            if let Some((policy, key)) = row.key.as_deref().map(|text| of_key_in(name, text)).transpose()?
                && !key.is_empty()
            {
                let key = (name.clone(), key.to_owned());
                match policy {
                    Some(policy) => drop(self.keys.insert(key, policy)),
                    None => drop(self.keys.remove(&key)),
                }
            }
            match &row.composite {
                Some(text) => drop(self.composites.insert(name.clone(), policies(name, text)?)),
                None => drop(self.composites.remove(name)),
            }
        }
        Ok(())
    }

    /// Adds a change of a row to be sent to the server.
    pub(super) fn enqueue(&mut self, name: &str, change: RowChange) {
        if !self.has_outbox {
            return;
        }
        match self.outbox.iter_mut().find(|(known, _)| known == name) {
            Some((_, changes)) => changes.push(change),
            None => self.outbox.push((name.to_owned(), vec![change])),
        }
    }
}

/// A policy that a server has stored.
pub(in crate::state) fn policy_in(name: &str, text: &str) -> Result<Policy> {
    text.parse().or_else(|e| damaged(name, text, &e))
}

/// The policies of a server's row: the declared one, and the one above it, whose second line says what put it there.
pub(in crate::state) fn declared_by(name: &str, policy: &str, overriding: Option<&str>) -> Result<Declared> {
    let (above, source) = overriding.map_or((None, None), |text| match text.split_once('\n') {
        Some((policy, source)) => (Some(policy), Some(source.into())),
        None => (Some(text), None),
    });
    let overriding = above.map(|text| policy_in(name, text)).transpose()?;
    Ok(Declared { declared: policy_in(name, policy)?, overriding, source })
}

fn policies(name: &str, text: &str) -> Result<Vec<NamedPolicy>> {
    policy::parse_all(text).or_else(|e| damaged(name, text, &e))
}

/// The policy and the key of a server's row for a key.
pub(in crate::state) fn of_key_in<'t>(name: &str, text: &'t str) -> Result<(Option<Policy>, &'t str)> {
    let (text, key) = text.split_once('\n').unwrap_or((text, ""));
    Ok(((!text.is_empty()).then(|| policy_in(name, text)).transpose()?, key))
}

fn damaged<R>(name: &str, text: &str, why: &Error) -> Result<R> {
    Err(Error::store(
        format!("reading what is declared as \"{name}\""),
        format_args!("\"{text}\" makes no sense: {why}"),
    ))
}

impl Rare {
    pub(super) fn enqueue_key(&mut self, name: &str, key: &str, policy: Option<Policy>) {
        self.enqueue(&self.places.of(name), RowChange::Key(hash_of(key), key.to_owned(), policy));
    }

    /// Records that nothing is declared in this row any more.
    pub(in crate::state) fn forgotten(&mut self, row: &str) {
        if self.has_outbox {
            self.outbox.retain(|(known, _)| known != row);
            self.outbox.push((row.to_owned(), Vec::new()));
        }
    }
}

fn hash_of(key: &str) -> Hash {
    Hash::of(&hasher(SERVER_SECRET, b'k'), key)
}
