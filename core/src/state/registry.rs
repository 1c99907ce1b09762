//! What a server says is declared, and what this process knows of it.
//!
//! A process keeps what it needs of that as a store in memory keeps what is declared there. It asks the server before anything is
//! declared, found or overridden, and tells it afterwards what has changed: never under the structure lock, so that nobody waits
//! for a server but who asks it. Between the two somebody else may have changed the same. Then the server has what it was told
//! last, and whoever decides by anything else is told so with the next decision: see [`Session::follow_server`].

use super::declare::{Declared, part_names};
use super::locked::Locked;
use super::random;
use super::session::{Rare, Session};
use super::table::{Hash, hasher};
use crate::algorithm::grants::Lengths;
use crate::error::{Error, Result};
use crate::policy::{self, Policy};
use crate::server::{Engine, MOST, Note, Row};
use crate::time::{Tick, from_ticks};
use crate::waiting::MayWait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a server said of a name.
type Rows = Vec<(String, Row)>;

/// What a server has to be told: of a name, and whether nothing is declared under it any more.
pub(super) type Told = Vec<(String, Vec<Note>)>;

/// A number that nobody else has on a server.
pub(super) fn new_owner() -> Result<u64> {
    let [number, _] = random().map_err(|e| Error::store("asking the system for random numbers", e))?;
    Ok(number & MOST)
}

/// What names and keys on a server are hashed with. (Whoever chooses keys can make some that are looked for in the same slots of
/// a process's index; no two with the same hash.)
pub(super) const SERVER_SECRET: [u64; 2] = [0x776f_726b_676c_6f77, 0x6c69_6d69_7473_2031];

/// How long it waits, of a whole wait that has begun.
struct Left(Instant, Duration);

impl Left {
    fn new(session: &Session) -> Result<Left> {
        Ok(Left(Instant::now(), MayWait::part_for_server(session.options.timeout)?))
    }

    fn now(&self) -> Duration {
        self.1.saturating_sub(self.0.elapsed())
    }
}

impl Session {
    /// The server that the limits are on, if they are on one.
    #[inline(always)]
    pub fn server(&self) -> Option<&Arc<dyn Engine>> {
        self.server.as_ref()
    }

    /// Who this process is to a server: a number that no other has.
    pub fn owner(&self) -> Result<u64> {
        let mut owner = self.owner.lock();
        if let Some(owner) = *owner {
            return Ok(owner);
        }
        Ok(*owner.insert(new_owner()?))
    }

    /// Does something under the structure lock with what is declared under these names, and tells the server what has changed.
    pub fn with_names<R>(&self, names: &[&str], f: impl Fn(&Locked) -> Result<R>) -> Result<R> {
        self.with_key_of_names(names, None, f)
    }

    /// The same with the policy of a key, if it has one of its own.
    pub(super) fn with_key_of_names<R>(
        &self,
        names: &[&str],
        key: Option<&str>,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let Some(server) = self.server() else { return self.with_lock(f) };
        let left = Left::new(self)?;
        let rows = self.ask(server, names, key.map(|key| (hash_of(key), key)), &left)?;
        match self.with_rows(server, &rows, &left, f) {
            // This process may not know of all.
            Err(Error::UnknownLimit { name, .. }) => Err(Error::UnknownLimit { name, known: self.all_names()? }),
            answer => answer,
        }
    }

    fn with_rows<R>(
        &self,
        server: &Arc<dyn Engine>,
        rows: &Rows,
        left: &Left,
        f: impl Fn(&Locked) -> Result<R>,
    ) -> Result<R> {
        let (answer, told) = self.with_lock_for(left.now(), |locked| {
            self.rare().merge(rows)?;
            let answer = f(locked);
            // (Of what has failed nothing is told.)
            let told = std::mem::take(&mut self.rare().told);
            Ok((answer?, told))
        })?;
        let clock = &self.home().clock;
        let now = clock.is_manual().then(|| clock.now().floor);
        let mut out = Duration::ZERO;
        for (name, notes) in told {
            match notes.as_slice() {
                [] => server.forget(&name, left.now())?,
                notes => self.was_made(&name, server.note(&name, notes, now, left.now())?),
            }
            if now.is_none() {
                out = out.max(server.out(&name, left.now())?[1]);
            }
        }
        self.wait_for_grants(out);
        Ok(answer)
    }

    /// Machines may go on for so long by what they knew before something changed. Afterwards nobody does.
    pub fn wait_for_grants(&self, out: Duration) {
        std::thread::sleep(out.min(from_ticks(Lengths::MOST_TRUST)));
    }

    /// Asks what is declared under these names, under what they are parts of, and under their parts.
    fn ask(&self, server: &Arc<dyn Engine>, names: &[&str], key: Option<(Hash, &str)>, left: &Left) -> Result<Rows> {
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
            let mut row = server.row(&name, key.map(|(hash, _)| hash), left.now())?;
            // That it has none is an answer, too.
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
            row.made.into_iter().for_each(|made| self.was_made(name, made));
        }
        Ok(rows)
    }

    fn was_made(&self, name: &str, made: Tick) {
        self.made.lock().entry(name.to_owned()).or_insert(made);
    }

    /// When a limit was made that this process uses, by what the server said first; 0: it has not. If it says anything else later, it
    /// has lost the limit in between.
    pub fn made(&self, name: &str) -> Tick {
        self.made.lock().get(name).copied().unwrap_or(0)
    }

    /// Lets hold what the server says of a limit and a key, after it has said that something else holds.
    pub fn follow_server(&self, name: &str, key: Hash, declares: Option<Policy>) -> Result<()> {
        let server = self.server().expect("only a server says that");
        let left = Left::new(self)?;
        // Its text may not be known here. (Then there is nothing to forget of it.)
        let rows = self.ask(server, &[name], Some((key, "")), &left)?;
        self.with_rows(server, &rows, &left, |locked| {
            let declared = self.declared(name)?;
            match (declared, declares) {
                (Some(found), _) => self.bring(name, found.current(), locked)?,
                // The server has lost it, or somebody has taken it away.
                (None, Some(policy)) => return self.declare_all(&[(name, &[policy])], locked),
                (None, None) => return self.unknown(name),
            }
            let of_key = rows.iter().find(|(found, _)| found == name).and_then(|(_, row)| row.key.as_deref());
            let (policy, text) = of_key.map_or(Ok((None, "")), |text| of_key_in(name, text))?;
            let limit = locked.find_limit(name).expect("it was brought");
            locked.set_plan(limit, (key, text), policy)
        })?;
        self.settle(&[name])
    }

    /// All that is declared, in order.
    pub fn all_names(&self) -> Result<Vec<String>> {
        let Some(server) = self.server() else { return self.with_lock(|_| self.names()) };
        let left = Left::new(self)?;
        let mut names = server.names(left.now())?;
        let wholes = names.iter().filter_map(|name| Some(name.rsplit_once('/')?.0)).filter(|whole| !whole.is_empty());
        let rows = self.ask(server, &wholes.collect::<Vec<_>>(), None, &left)?;
        let mut parts = Vec::new();
        for (name, text) in rows.iter().filter_map(|(name, row)| Some((name, row.composite.as_ref()?))) {
            parts.extend(part_names(name, &policies(name, text)?));
        }
        names.retain(|name| !parts.contains(name));
        names.sort();
        Ok(names)
    }
}

impl Rare {
    /// What a server says, in place of what was known.
    fn merge(&mut self, rows: &Rows) -> Result<()> {
        for (name, row) in rows {
            let declared = match &row.policy {
                Some(text) => {
                    let overriding = row.overriding.as_deref().map(|text| policy(name, text)).transpose()?;
                    Some(Declared { declared: policy(name, text)?, overriding })
                }
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

    /// A server has to be told.
    pub(super) fn tell(&mut self, name: &str, note: Note) {
        if !self.tells {
            return;
        }
        match self.told.iter_mut().find(|(known, _)| known == name) {
            Some((_, notes)) => notes.push(note),
            None => self.told.push((name.to_owned(), vec![note])),
        }
    }
}

/// A policy that a server has noted.
fn policy(name: &str, text: &str) -> Result<Policy> {
    text.parse().or_else(|e| damaged(name, text, &e))
}

fn policies(name: &str, text: &str) -> Result<Vec<Policy>> {
    policy::parse_all(text).or_else(|e| damaged(name, text, &e))
}

/// The policy and the key of what is noted for a key.
fn of_key_in<'t>(name: &str, text: &'t str) -> Result<(Option<Policy>, &'t str)> {
    let (text, key) = text.split_once('\n').unwrap_or((text, ""));
    Ok(((!text.is_empty()).then(|| policy(name, text)).transpose()?, key))
}

fn damaged<R>(name: &str, text: &str, why: &Error) -> Result<R> {
    Err(Error::store(
        format!("reading what is declared as \"{name}\""),
        format_args!("\"{text}\" makes no sense: {why}"),
    ))
}

impl Rare {
    pub(super) fn tell_key(&mut self, name: &str, key: &str, policy: Option<Policy>) {
        self.tell(name, Note::Key(hash_of(key), key.to_owned(), policy));
    }

    /// Nothing is declared under this name any more.
    pub(super) fn forgotten(&mut self, name: &str) {
        if self.tells {
            self.told.retain(|(known, _)| known != name);
            self.told.push((name.to_owned(), Vec::new()));
        }
    }
}

fn hash_of(key: &str) -> Hash {
    Hash::of(&hasher(SERVER_SECRET, b'k'), key)
}
