//! A breadth-first search through everything that can happen, random walks in larger worlds, and descriptions of what
//! happened.

use super::message::{Answer, Content, Message};
use super::setting::Setting;
use super::world::*;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How often a search has seen the events that it is for. A search that saw none proves nothing.
pub type Sightings = BTreeMap<&'static str, u64>;

pub struct Outcome {
    pub states: usize,
    pub seen: Sightings,
    /// The violation, and the shortest path to it.
    pub wrong: Option<(Wrong, Vec<Action>)>,
}

fn note(seen: &mut Sightings, before: &World, action: Action, after: &World, s: &Setting) {
    let units = |world: &World| world.engine.log.iter().map(|e| e.units).sum::<u8>();
    let mut saw = |what, it: bool| *seen.entry(what).or_default() += it as u64;
    match action {
        Action::Start { site, cell } => {
            saw("starts", true);
            saw("starts with as many as the limit", after.starts.len() >= s.limit as usize);
            saw("starts by a future grant", before.sites[site].cells[cell].future);
            saw("starts after a pause", s.budget.pauses > before.budget.pauses && before.gate == 0);
        }
        Action::Go(_) => saw("starts after a stop", true),
        Action::Arrive(message) => {
            let message = &before.net[message];
            let again = before.engine.records.iter().any(|(name, _)| *name == message.name);
            let granted = units(after) > units(before);
            saw("returns", units(after) < units(before));
            saw("requests again", again && matches!(message.content, Content::Request(_)));
            saw("grants after a loss", granted && after.engine.epoch > 0);
            saw("grants after a change", granted && after.engine.version > 0);
            saw("grants after a step", granted && s.budget.steps > before.budget.steps);
        }
        _ => {}
    }
}

/// The same for a state and its mirror image, since the two sites are alike.
fn fingerprint(world: &World) -> u64 {
    let of = |world: &World| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    of(world).min(of(&world.mirrored()))
}

/// Visits every reachable state, until something is wrong.
pub fn exhaust(s: &Setting, most: usize) -> Outcome {
    let start = World::new(s);
    let mut visited = HashSet::from([fingerprint(&start)]);
    // For each state, only the path is kept: the previous state and the action.
    let mut ways: Vec<(u32, Action)> = vec![(0, Action::Lose)];
    let mut front = vec![(0, start)];
    let mut seen = Sightings::new();
    while !front.is_empty() {
        let mut next = vec![];
        for (from, world) in &front {
            for action in world.actions(s) {
                let mut after = world.clone();
                let wrong = after.act(action, s);
                if let Some(wrong) = wrong {
                    let way = way(&ways, *from, action);
                    return Outcome { states: visited.len(), seen, wrong: Some((wrong, way)) };
                }
                note(&mut seen, world, action, &after, s);
                if visited.insert(fingerprint(&after)) {
                    ways.push((*from, action));
                    next.push((ways.len() as u32 - 1, after));
                }
            }
        }
        assert!(visited.len() <= most, "{}: more than {most} states", s.name);
        front = next;
    }
    Outcome { states: visited.len(), seen, wrong: None }
}

fn way(ways: &[(u32, Action)], mut at: u32, last: Action) -> Vec<Action> {
    let mut actions = vec![last];
    while at != 0 {
        let (from, action) = ways[at as usize];
        actions.push(action);
        at = from;
    }
    actions.reverse();
    actions
}

/// Takes this many random steps. The same seed takes the same path.
pub fn walk(s: &Setting, seed: u64, steps: usize) -> Outcome {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut pick = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) as usize % n
    };
    let (mut world, mut seen, mut way) = (World::new(s), Sightings::new(), vec![]);
    for _ in 0..steps {
        // Mostly something starts, if it can, or messages are sent and arrive, so that limits are reached.
        let kinds = [Kind::Start, Kind::Start, Kind::Message, Kind::Message, Kind::Message, Kind::Time];
        let kind = if pick(100) == 0 { Kind::Rare } else { kinds[pick(kinds.len())] };
        let mut actions = world.actions(s);
        actions.retain(|action| action.kind() == kind);
        let Some(action) = (!actions.is_empty()).then(|| actions[pick(actions.len())]) else { continue };
        let before = world.clone();
        way.push(action);
        if let Some(wrong) = world.act(action, s) {
            return Outcome { states: way.len(), seen, wrong: Some((wrong, way)) };
        }
        note(&mut seen, &before, action, &world, s);
    }
    Outcome { states: way.len(), seen, wrong: None }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Time,
    Message,
    Start,
    Rare,
}

impl Action {
    fn kind(&self) -> Kind {
        match self {
            Action::Step(_) => Kind::Time,
            Action::Ask { .. } | Action::Repeat(_) | Action::Arrive(_) => Kind::Message,
            Action::Start { .. } | Action::Look { .. } | Action::Go(_) => Kind::Start,
            _ => Kind::Rare,
        }
    }
}

/// Describes what happened, one line per action.
pub fn describe(s: &Setting, way: &[Action]) -> String {
    let (mut world, mut step, mut text) = (World::new(s), 0, String::new());
    for action in way {
        let before = world.clone();
        let wrong = world.act(*action, s);
        if let Action::Step(_) = action {
            step += 1;
        }
        writeln!(text, "  {step:3}  {}", line(action, &before, &world, s)).unwrap();
        if let Some(wrong) = wrong {
            let starts: Vec<_> = world.starts.iter().map(|start| (step - start.looked, step - start.done)).collect();
            writeln!(text, "  {step:3}  {wrong:?}: starts within {starts:?}").unwrap();
        }
    }
    text
}

fn line(action: &Action, before: &World, after: &World, s: &Setting) -> String {
    match *action {
        Action::Step(_) if s.drift == 0 => "…".into(),
        Action::Step(rates) => format!("(the sites' clocks count {:?})", &rates[..s.sites as usize]),
        Action::Ask { site, want, waits, back, .. } => {
            let returns = back.map(|cell| before.sites[site].cells[cell].left);
            let returns = returns.map_or(String::new(), |units| format!(", and returns {units}"));
            format!("site {site} asks for {want}{}{returns}", if waits { ", and waits" } else { "" })
        }
        Action::Repeat(site) => format!("site {site} sends its request again"),
        Action::GiveUp(site) => format!("site {site} gives its request up"),
        Action::Arrive(message) => arrival(&before.net[message], after),
        Action::Start { site, .. } => format!("site {site} starts a unit"),
        Action::Look { site, .. } => format!("site {site}: a process sees that it may start, and is stopped"),
        Action::Go(site) => format!("site {site}: that process continues, and starts a unit"),
        Action::Die(site) => format!("site {site} dies, and another one takes its place"),
        Action::Lose => "the engine loses its memory".into(),
        Action::Change => format!("the limit is lowered to {}", s.lowered),
        Action::Pause => format!("a pause of {} ticks is asked for", s.pause),
        Action::SetBack => format!("the engine's clock is set back by {} ticks", s.step),
        Action::SetForward => format!("the engine's clock is set forward by {} ticks", s.step),
    }
}

fn arrival(message: &Message, after: &World) -> String {
    let site = message.name.site;
    let log = after.engine.log.iter().map(|e| format!("{} until {}", e.units, e.stamp)).collect::<Vec<_>>().join(", ");
    match message.content {
        Content::Request(_) => format!("the engine handles a request of site {site}; its log, from now: [{log}]"),
        Content::Answer(Answer { grant: None, .. }) => format!("site {site} learns that there is nothing"),
        Content::Answer(Answer { grant: Some((ready, units)), .. }) => {
            let cell = after.sites[site as usize].cells.last();
            let good = cell.map_or("never".into(), |cell| {
                format!("from {} until {} by its clock, from now", cell.from, cell.until)
            });
            format!("site {site} gets {units}, ready in {ready}: good {good}")
        }
    }
}
