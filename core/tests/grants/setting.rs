//! How large a world is, what may go wrong in it, and which protection is taken away.

/// A protection that is taken away, to see that the search notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: all protections are there.
    Sound,
    /// The end of a grant is counted from the answer instead of the question.
    FromTheAnswer,
    /// ... from the last time the question was sent instead of the first.
    FromTheRepeat,
    /// Both clocks are taken to run alike.
    DriftIgnored,
    /// The site rounds its own clock in its favour.
    SiteRoundsUp,
    /// The engine takes its reading for the time, which may be nearly a tick later.
    EngineRoundsDown,
    /// An entry is stamped with the beginning of its grant.
    StampedAtBeginning,
    /// An engine that has lost its memory grants at once.
    NoSilence,
    /// ... or as soon as a window has passed.
    SilenceOfWindow,
    /// A site goes on with grants of an epoch that it knows to be over.
    EpochIgnored,
    /// An answer that comes again is taken for another grant.
    AnswerTakenTwice,
    /// The engine grants anew for each copy of a request.
    RepeatGrantedTwice,
    /// ... as it forgets at once what it has answered: which costs units, but exceeds no limit.
    Forgetful,
    /// A return says how much goes instead of how much stays, and each copy of it counts.
    ReturnAppliedTwice,
    /// A return is taken off the newest grant, whichever it names.
    ReturnToAnother,
    /// Units are returned while a process that looked at them can still start.
    ReturnedAndStarted,
    /// A grant that has ended counts from a tick before that.
    EndedBefore,
    /// A site that comes back goes by the name, and counts from the number, that it had before.
    OldName,
    /// A change of policy returns at once.
    ChangeAtOnce,
    /// A site goes on with grants of a policy that it knows to be over.
    VersionIgnored,
    /// A pause returns at once.
    PauseAtOnce,
    /// A site knows of a gate and starts.
    GateIgnored,
    /// A site starts however long ago it last heard from the engine.
    Untrusted,
    /// The engine believes its clock, whatever that said before.
    NoFloor,
    /// The engine holds the latest time that it saw, and grants while its clock is behind that.
    GrantsWhileBehind,
}

/// How often each misfortune may happen.
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
    /// For how much longer an answer is good.
    pub extra: i16,
    pub tick: i16,
    pub fine: i16,
    pub drift: i16,
    pub grain: i16,
    /// How many units a request may want.
    pub wants: &'static [u8],
    /// How far ahead a grant may begin, in ticks. 0: at once or not at all.
    pub ahead: i16,
    /// How many grants a site may hold, and how many of its requests may be under way.
    pub held: usize,
    pub requests: usize,
    /// For how many steps a message can arrive, any number of times, in any order, or never.
    pub delay: u8,
    /// For how many steps a process may be stopped between its look at a grant and its start.
    pub stops: u8,
    /// Whether units are returned.
    pub returns: bool,
    /// How long a pause is, and by how much the engine's clock is set back, in ticks.
    pub pause: i16,
    pub step: i16,
    pub budget: Budget,
}

/// Two sites and clocks that agree; nothing goes wrong but messages.
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

    /// For how long an answer is good, in ticks.
    pub fn trust(&self) -> i16 {
        self.length + self.extra
    }

    /// For how many ticks after a change units can start by what held before it.
    pub fn by_old_rules(&self) -> i16 {
        self.trust() + self.engine_error()
    }

    /// What a site's clock counts at least while `ticks` pass, as a multiple of what it shows.
    pub fn at_least(&self, ticks: i16) -> i16 {
        let drift = if self.is(Fault::DriftIgnored) { 0 } else { self.drift };
        self.down(ticks * self.tick * (self.fine - drift))
    }

    /// What a site's clock counts at most while `ticks` pass.
    pub fn at_most(&self, ticks: i16) -> i16 {
        let drift = if self.is(Fault::DriftIgnored) { 0 } else { self.drift };
        self.up(ticks * self.tick * (self.fine + drift))
    }

    /// What a site's clock shows.
    pub fn down(&self, clock: i16) -> i16 {
        clock.div_euclid(self.grain) * self.grain
    }

    /// What a site's clock shows next, if it does not show exactly this.
    pub fn up(&self, clock: i16) -> i16 {
        -self.down(-clock)
    }
}
