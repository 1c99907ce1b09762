//! The size of a world, what may go wrong in it, and which protection is removed.

/// A protection that is removed, to check that the search notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: all protections are there.
    Sound,
    /// The end of a grant is counted from the answer instead of the question.
    FromTheAnswer,
    /// ... from the last time the question was sent instead of the first.
    FromTheRepeat,
    /// Both clocks are assumed to run alike.
    DriftIgnored,
    /// The site rounds its own clock in its favour.
    SiteRoundsUp,
    /// The engine takes its reading as the time, which may be nearly a tick later.
    EngineRoundsDown,
    /// An entry is stamped with the beginning of its grant.
    StampedAtBeginning,
    /// An engine that has lost its memory grants at once.
    NoSilence,
    /// ... or as soon as a window has passed.
    SilenceOfWindow,
    /// A site continues with grants of an epoch that it knows to be over.
    EpochIgnored,
    /// An answer that arrives again is taken as another grant.
    AnswerTakenTwice,
    /// The engine grants again for each copy of a request.
    RepeatGrantedTwice,
    /// ... because it forgets its answers at once. This costs units, but exceeds no limit.
    Forgetful,
    /// A return states how many units leave instead of how many stay, and each copy of it counts.
    ReturnAppliedTwice,
    /// A return is taken off the newest grant, whichever it names.
    ReturnToAnother,
    /// Units are returned while a process that checked them can still start.
    ReturnedAndStarted,
    /// A grant that has ended counts from a tick before that.
    EndedBefore,
    /// A restarted site uses its previous name, and continues its numbers.
    OldName,
    /// A change of policy returns at once.
    ChangeAtOnce,
    /// A site continues with grants of a policy that it knows to be over.
    VersionIgnored,
    /// A pause returns at once.
    PauseAtOnce,
    /// A site starts although it knows of a gate.
    GateIgnored,
    /// A site starts however long ago it last received an answer from the engine.
    Untrusted,
    /// The engine trusts its clock, whatever it showed before.
    NoFloor,
    /// The engine keeps the latest time that it saw, and grants while its clock is behind that.
    GrantsWhileBehind,
}

/// How often each fault may happen.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Budget {
    pub deaths: u8,
    pub losses: u8,
    pub changes: u8,
    pub pauses: u8,
    pub steps: u8,
}

pub const CALM: Budget = Budget { deaths: 0, losses: 0, changes: 0, pauses: 0, steps: 0 };

/// The constants of a world. True time passes in steps; the engine's clock shows ticks of `tick` steps. A site's clock
/// counts `fine` units in a step, or `drift` fewer or more, and shows multiples of `grain`.
#[derive(Clone)]
pub struct Setting {
    pub name: &'static str,
    pub fault: Fault,
    pub sites: u8,
    pub limit: u8,
    /// The limit after a change.
    pub lowered: u8,
    /// In ticks.
    pub window: i16,
    /// Of a grant, in ticks.
    pub length: i16,
    /// How much longer an answer is valid.
    pub extra: i16,
    pub tick: i16,
    pub fine: i16,
    pub drift: i16,
    pub grain: i16,
    /// The numbers of units that a request may want.
    pub wants: &'static [u8],
    /// How far ahead a grant may begin, in ticks. 0: at once or not at all.
    pub ahead: i16,
    /// How many grants a site may hold, and how many outstanding requests it may have.
    pub held: usize,
    pub requests: usize,
    /// The number of steps in which a message can arrive, any number of times, in any order, or never.
    pub delay: u8,
    /// The number of steps for which a process may be stopped between its check of a grant and its start.
    pub stops: u8,
    /// Whether units are returned.
    pub returns: bool,
    /// The length of a pause, and by how much the engine's clock is set back, in ticks.
    pub pause: i16,
    pub step: i16,
    pub budget: Budget,
}

/// Two sites and clocks that agree; only messages can go wrong.
pub const PLAIN: Setting = Setting {
    name: "messages",
    fault: Fault::Sound,
    sites: 2,
    limit: 2,
    lowered: 1,
    window: 3,
    length: 2,
    extra: 0,
    tick: 1,
    fine: 1,
    drift: 0,
    grain: 1,
    wants: &[1, 2],
    ahead: 0,
    held: 1,
    requests: 1,
    delay: 2,
    stops: 0,
    returns: false,
    pause: 0,
    step: 0,
    budget: CALM,
};

impl Setting {
    pub fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    pub fn with(&self, fault: Fault) -> Setting {
        Setting { fault, ..self.clone() }
    }

    /// The window in steps.
    pub fn window_steps(&self) -> i16 {
        self.window * self.tick
    }

    /// By how much the true time may be later than the engine's clock shows, in ticks.
    pub fn engine_error(&self) -> i16 {
        (self.tick > 1 && !self.is(Fault::EngineRoundsDown)) as i16
    }

    /// How long an answer is valid, in ticks.
    pub fn trust(&self) -> i16 {
        self.length + self.extra
    }

    /// The number of ticks after a change in which units can still start by the previous rules.
    pub fn by_old_rules(&self) -> i16 {
        self.trust() + self.engine_error()
    }

    /// The least that a site's clock advances in `ticks`, as a multiple of its resolution.
    pub fn at_least(&self, ticks: i16) -> i16 {
        let drift = if self.is(Fault::DriftIgnored) { 0 } else { self.drift };
        self.down(ticks * self.tick * (self.fine - drift))
    }

    /// The most that a site's clock advances in `ticks`.
    pub fn at_most(&self, ticks: i16) -> i16 {
        let drift = if self.is(Fault::DriftIgnored) { 0 } else { self.drift };
        self.up(ticks * self.tick * (self.fine + drift))
    }

    /// The value that a site's clock shows.
    pub fn down(&self, clock: i16) -> i16 {
        clock.div_euclid(self.grain) * self.grain
    }

    /// The next value that a site's clock shows, unless it shows exactly this.
    pub fn up(&self, clock: i16) -> i16 {
        -self.down(-clock)
    }
}
