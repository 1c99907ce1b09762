//! The messages between the sites and the engine.

/// Identifies a request of a site, and its grant: the site, how often it has died before, and the number of the
/// request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    pub site: u8,
    pub born: u8,
    pub number: i8,
}

/// A return of units: of a grant, only `stay` units have started or can still start. `gone` is for a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Return {
    pub name: Name,
    pub epoch: u8,
    pub stay: u8,
    pub gone: u8,
}

/// A request for `want` units: now, or as soon as there are any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    pub want: u8,
    pub waits: bool,
    pub back: Option<Return>,
}

/// The present rules, and perhaps a grant: in how many ticks it is ready, and how many units it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    pub epoch: u8,
    pub version: u8,
    pub gate: i16,
    pub grant: Option<(i16, u8)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    Request(Request),
    Answer(Answer),
}

/// A message. It can arrive any number of times until its life is over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub name: Name,
    pub content: Content,
    pub life: u8,
}
