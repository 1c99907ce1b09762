"""Simulates a limit that many machines share through one server, to choose the constants of its policy.

The server (the *engine*) grants units of a rolling-window limit to machines (*sites*). A site starts granted units
without asking again. README.md in this folder explains the policy and lists the results.

    simulate.py                              every table, in about a minute
    simulate.py --scenario NAME [--seed N]   one table
    simulate.py --list                       the names of the tables

One event loop simulates everything. True time is a float in microseconds; the engine's clock runs at the rate of true
time. Clocks read whole ticks of a microsecond, rounded down, like real ones. No result depends on the machine.
"""

import argparse
import bisect
import heapq
import random
from collections import deque
from dataclasses import dataclass, field, replace
from math import ceil, floor

MS, S = 1_000, 1_000_000


@dataclass(frozen=True)
class Policy:
    """The constants of the policy. README.md has the reasons."""

    length: int = 40  # A grant lasts W / length ...
    small: int = 20  # ... or W / small, if a site's share of W / length is less than one unit ...
    trips: int = 4  # ... but at least this many round trips.
    longest: int = 4 * S  # No grant lasts longer than W/4 or this, whichever is longer.
    ahead: int = 6  # All sites together are promised units of about W / ahead.
    period: int = 8  # Starts and denials are counted for W / period.
    crowd: int = 8  # The share of a site is computed for this many sites at least.
    merge: int = 8  # Units that come within g / merge of each other become one grant.
    sure: int = 4  # A promise further ahead than W / sure must be confirmed when its time comes.
    more: float = 1.0  # A site asks for this multiple of its likely starts during the grant.
    pace: float = 1.0  # The same for promises to callers who were denied. With 0 there are none.
    swift: float = 3.0  # ... times this, if nothing of its last grants was left over.
    low: float = 0.0  # A site asks again when it holds at most this share of the units that it would ask for.
    shorten: bool = True  # A site reports when a grant was used up, so that it counts from that moment.
    fair: bool = True  # The engine limits the units of one request to the share of a site.
    rho: float = 1e-3  # The largest difference of two clocks' rates.


@dataclass
class Entry:
    """One grant in the engine's log. Its units can be granted again when `stamp` is older than the window."""

    stamp: int
    ready: int
    units: int
    site: int
    seq: int
    part: int
    ends: int = 0  # Where its units end. A report that it was used up moves `stamp`, but not this.

    def __lt__(self, other):
        return self.stamp < other.stamp


class Engine:
    def __init__(self, limit, window, policy, faults):
        self.limit, self.window, self.policy, self.faults = limit, window, policy, faults
        self.step = self.shift = self.last = 0
        self.epoch, self.silent = 1, 0
        self.longest_log = 0
        self.forget()

    def forget(self):
        self.log, self.units, self.grants, self.asked = [], 0, {}, {}

    def clock(self, t):
        """Corrects a wall clock that was set back: time continues from the last reading, without repeating or stopping."""
        raw = floor(t + self.step) + self.shift
        if raw < self.last:
            self.shift += self.last - raw
            raw = self.last
        self.last = raw
        return raw

    def new_epoch(self, now):
        """Begins an epoch. Every grant of the old one has ended, and left every window, before this one grants units."""
        self.forget()
        self.epoch += 1
        p, w = self.policy, self.window
        self.silent = 0 if "epoch" in self.faults else now + w + w // p.sure + max(w // 4, p.longest)

    def forget_grant(self, entry):
        parts = self.grants.get((entry.site, entry.seq), [])
        if entry in parts:
            parts.remove(entry)
            if not parts:
                del self.grants[entry.site, entry.seq]

    def drop(self, entry):
        at = bisect.bisect_left(self.log, entry)
        while self.log[at] is not entry:
            at += 1
        del self.log[at]
        self.units -= entry.units

    def add(self, entry):
        bisect.insort(self.log, entry)
        self.units += entry.units

    def report(self, now, site, seq, part, used, age):
        """Ends a grant: `used` units were started, the last of them `age` ago. A repeated report has no effect."""
        for entry in list(self.grants.get((site, seq), ())):
            if part in (entry.part, None) and used <= entry.units:
                self.drop(entry)
                entry.units = used
                if self.policy.shorten:  # The site's clock was read at most one tick and a whole delay before `now`.
                    entry.stamp = min(entry.stamp, max(entry.ready, now + 1 - age))
                if used:
                    self.add(entry)
                else:
                    self.forget_grant(entry)

    def ask(self, t, m):
        """Answers one request: (epoch, now, [(part, ready in, ends in, units, sure)], next)."""
        now, p = self.clock(t), self.policy
        if m.stepped == self.epoch:
            self.new_epoch(now)
        while self.log and self.log[0].stamp + self.window <= now:
            entry = self.log.pop(0)
            self.units -= entry.units
            self.forget_grant(entry)
        self.asked[m.site] = now
        for site in [s for s, at in self.asked.items() if at + self.window < now]:
            del self.asked[site]
        if m.epoch == self.epoch:
            for r in m.reports:
                self.report(now, m.site, *r)
        again = self.grants.get((m.site, m.seq))
        if again is None and not m.confirm and now >= self.silent:
            again = self.grant(now, m)
        horizon = self.window // p.sure
        parts = [(e.part, e.ready - now, e.ends - now, e.units, e.ready - now <= horizon) for e in again or ()]
        return self.epoch, now, parts, max(self.silent - now, self.next_free() - now, 1)

    def grant(self, now, m):
        """Grants free units first, then units that are free soon, oldest first, after those that are promised already."""
        p, free = self.policy, self.limit - self.units
        share = max(1, ceil(self.limit / (p.ahead * max(p.crowd, len(self.asked))))) if p.fair else self.limit
        parts = []  # [ready, units, when the first of them was ready]
        given = max(0, min(m.want, max(share, free // 2), free))
        if given:
            parts.append([now, given, now])
        wanted = min(m.future, share) - given
        if given < m.want and wanted > 0:
            skip = max(0, self.units + given - self.limit)
            for entry in self.log:
                take = min(max(entry.units - skip, 0), wanted)
                skip = max(0, skip - entry.units)
                if take:
                    ready = max(now, entry.stamp + self.window)
                    if parts and ready - parts[-1][2] <= m.length // p.merge:
                        parts[-1][:2] = ready, parts[-1][1] + take
                    else:
                        parts.append([ready, take, ready])
                    wanted -= take
                if wanted <= 0:
                    break
        stamp = 0 if "stamp" in self.faults else m.length
        entries = [Entry(q[0] + stamp, q[0], q[1], m.site, m.seq, i, q[0] + m.length) for i, q in enumerate(parts)]
        for entry in entries:
            self.add(entry)
        if entries:
            self.grants[m.site, m.seq] = entries
        if now > 3 * self.window:  # Earlier uses of the limit have left the log.
            self.longest_log = max(self.longest_log, len(self.log))
        return entries

    def next_free(self):
        skip = self.units - self.limit
        for entry in self.log if skip >= 0 else ():
            skip -= entry.units
            if skip < 0:
                return entry.stamp + self.window
        return 0


@dataclass
class Message:
    site: int
    seq: int
    epoch: int
    want: int
    future: int
    length: int
    reports: list
    asked: int  # The site's own clock before it asked. It stays at the site.
    confirm: tuple = ()  # The parts of an earlier answer that this one is to confirm.
    stepped: int = 0
    number: int = 0
    attempt: int = 1


@dataclass
class Grant:
    start: int
    until: int
    left: int
    units: int
    seq: int
    part: int
    sure: bool
    due: float  # When its units were ready, in true time. For measuring only.
    last: int = 0


class Site:
    """The code inside the callers of one machine. It runs only in a call or when a waiter wakes."""

    def __init__(self, world, home):
        self.world, self.home, self.policy, self.faults = world, home, world.policy, world.faults
        self.id = world.sites_made = world.sites_made + 1
        rnd = world.random
        self.rate, self.offset = 1 + rnd.uniform(-1, 1) * world.drift, rnd.uniform(0, 1e9)
        if world.drift_extreme:
            self.rate = 1 + world.drift * (1 if home % 2 else -1)
        self.grants, self.reports, self.sent = [], [], []
        self.joined, self.line = [], deque()
        self.asking = self.number = self.seq = self.quiet = self.epoch = self.stepped = 0
        self.trip, self.denied, self.before, self.wake_at = world.rtt_guess, -(1 << 60), None, None
        self.period, self.counts, self.last_counts = 0, [0, 0], [0, 0]
        self.dead = self.left_over = False

    def clock(self):
        return floor(self.world.now * self.rate + self.offset)

    def true(self, tick):
        return (tick + 0.5 - self.offset) / self.rate

    def length(self):
        p, w = self.policy, self.world.window
        shortest = w // (p.length if self.world.limit >= p.length * p.crowd else p.small)
        return min(max(shortest, p.trips * self.trip), max(w // 4, p.longest))

    def lately(self, x, what):
        """Returns the starts (0) or denials (1) of this site in the busier of this and the last period."""
        period = x // (self.world.window // self.policy.period)
        if period != self.period:
            self.last_counts = self.counts if period == self.period + 1 else [0, 0]
            self.counts, self.period = [0, 0], period
        return max(self.last_counts[what], self.counts[what])

    def denial(self, x):
        self.lately(x, 1)
        self.counts[1] += 1

    def take(self, x):
        while self.grants:
            g = self.grants[0]
            if g.left and x < g.until:
                break
            self.over(self.grants.pop(0))
        if self.grants and self.grants[0].start <= x and self.grants[0].sure:
            g.left -= 1
            g.last = x
            self.world.due = g.due
            self.lately(x, 0)
            self.counts[0] += 1
            self.world.started(self)
            return True
        return False

    def over(self, g):
        self.reports.append((g.seq, g.part, g.units - g.left, g.last))
        self.world.wasted += g.left
        self.left_over |= g.left > 0

    def call(self, caller):
        """Serves a caller that does not wait in line, except for one answer. Passes it 'start', or when to retry."""
        if self.dead:
            return
        x = self.clock()
        if not self.line and self.take(x):
            caller(True, 0)
            held = sum(g.left for g in self.grants)
            if (
                self.policy.low
                and held <= self.policy.low * self.share_of_grant(x, self.lately(x, 0))
                and x >= self.quiet
            ):
                self.ask(x)
        elif self.asking:
            self.joined.append(caller)
        elif self.grants and not self.grants[0].sure and x >= self.grants[0].start - 4 * self.trip:
            self.joined.append(caller)
            self.confirm(x)
        elif self.grants or x < self.quiet or self.line:
            at = self.grants[0].start if self.grants else self.quiet
            self.denial(x)
            caller(False, max(at - x, 1))
        else:
            self.joined.append(caller)
            self.ask(x)

    def wait(self, asked):
        self.line.append(asked)
        self.denial(self.clock())
        if len(self.line) == 1 or self.world.now >= self.true(self.quiet):
            self.serve()

    def serve(self):
        """Starts the waiters whose time has come, and sets the time at which the first of the others wakes."""
        if self.dead or not self.line:
            return
        x = self.clock()
        while self.line and self.take(x):
            self.world.waited(self, self.line.popleft())
        if not self.line:
            return
        if not self.grants:
            if x >= self.quiet:
                self.ask(x)
            else:
                self.wake(self.quiet)
        elif self.grants[0].sure:
            self.wake(self.grants[0].start)
        elif x >= self.grants[0].start - 4 * self.trip:
            self.confirm(x)
        else:
            self.wake(self.grants[0].start - 4 * self.trip)

    def wake(self, tick):
        if self.wake_at != tick:
            self.wake_at = tick
            self.world.at(max(self.true(tick), self.world.now) + self.world.lateness(), self.woken, tick)

    def woken(self, tick):
        if tick == self.wake_at:
            self.wake_at = None
            self.serve()

    def share_of_grant(self, x, starts):
        """Returns how many of the `starts` in a period fall into the length of a grant."""
        return starts * self.length() * self.policy.period / self.world.window

    def ask(self, x):
        if self.asking:
            return
        starts, denials = self.lately(x, 0), self.lately(x, 1)
        want = max(1, ceil(self.share_of_grant(x, starts) * self.policy.more), len(self.joined), len(self.line))
        future = (
            self.share_of_grant(x, starts + denials) * self.policy.pace * (1 if self.left_over else self.policy.swift)
        )
        self.left_over = False
        if future < 1 and x >= self.denied + self.length():
            future = 0  # A unit would most likely stay unused.
        future = min(2 * starts + 1, ceil(future))
        self.seq += 1
        self.send(Message(self.id, self.seq, self.epoch, want, max(future, len(self.line)), self.length(), [], x))

    def confirm(self, x):
        """Repeats a request: the answer contains the current times at which the promised units are ready."""
        if not self.asking:
            g = self.grants.pop(0)
            self.send(Message(self.id, g.seq, self.epoch, 0, 0, self.length(), [], x, (g.part,)))

    def send(self, m):
        self.asking = m.number = self.number = self.number + 1
        m.asked, m.stepped = self.clock(), self.stepped
        self.sent, self.reports = self.sent + self.reports, []
        drift = 1 - self.policy.rho
        m.reports = [(s, p, u, max(0, floor((m.asked - last - 1) * drift))) for s, p, u, last in self.sent]
        self.world.requests[self.id] = self.world.requests.get(self.id, 0) + 1
        delay = self.world.delay(self.home)
        if delay is not None:
            self.world.at(self.world.now + delay, self.world.arrive, self, m)
        self.world.at(self.world.now + max(8 * self.trip, self.world.patience), self.expire, m)

    def expire(self, m):
        """Handles a missing answer: repeats the request twice; then the callers get an error."""
        if self.dead or self.asking != m.number:
            return
        if m.attempt < 3:
            return self.send(replace(m, attempt=m.attempt + 1))
        x = self.clock()
        self.asking, self.quiet = 0, x + 8 * self.trip
        for part in m.confirm or (None,):  # Units granted by that request are returned.
            self.reports.append((m.seq, part, 0, x))
        self.answer_calls()

    def answer(self, m, epoch, now, parts, next_free):
        if self.dead:
            self.world.died += sum(part[3] for part in parts)
            return
        if self.asking != m.number and not ("twice" in self.faults and m.seq == self.seq):
            return
        b, rho, first = self.clock(), self.policy.rho, m.asked
        self.asking, self.sent = 0, []
        self.trip = max(b - first, self.trip - (self.trip - (b - first)) // 2)
        if epoch != self.epoch:  # Grants of the old epoch stay valid until they end. Promises to confirm do not.
            self.grants = [g for g in self.grants if g.sure]
            self.epoch, self.before = epoch, None
        if self.before and now - self.before[1] > (b - self.before[0] + 1) * (1 + rho) + 1 and self.world.watch:
            parts, self.stepped = [], epoch  # The server's clock cannot have run so far: it was set.
            return self.answer_calls()
        self.before = (first, now)
        if "drift" in self.faults:
            rho = 0
        for part, ready, ends, units, sure in parts:
            if m.confirm and part not in m.confirm:
                continue
            start = b + 1 + ceil(ready * (1 + rho)) if ready > 0 else b  # Clocks round down: hence a tick more.
            end = (b if "answer" in self.faults else first) + floor(ends * (1 - rho)) - 1
            g = Grant(start, end, units, units, m.seq, part, sure, now + ready)
            if start < end:
                bisect.insort(self.grants, g, key=lambda g: g.start)
            else:
                self.over(g)
        self.world.parts += len(parts)
        if not parts and not m.confirm:
            self.quiet = self.denied = b + ceil(next_free * (1 + rho))
        self.answer_calls()

    def answer_calls(self):
        joined, self.joined = self.joined, []
        for caller in joined:
            self.call(caller)
        self.serve()


@dataclass
class World:
    limit: int
    window: int
    sites: int = 8
    policy: Policy = Policy()
    seed: int = 1
    rtt: int = 500
    tail: tuple = (0.001, 5 * MS)  # This share of messages takes longer, by this much on average.
    loss: float = 0.0
    patience: int = 20 * MS  # A request is repeated after 8 round trips, but not sooner than this.
    drift: float = 0.0005
    drift_extreme: bool = False
    faults: tuple = ()
    partitions: tuple = ()  # (from, until, homes)
    watch: bool = True
    full: bool = True  # The limit was in use before: all of its units come back one by one.
    now: float = 0.0
    wasted: int = 0
    died: int = 0
    parts: int = 0
    sites_made: int = 0
    requests: dict = field(default_factory=dict)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.rtt_guess = 2 * self.rtt  # A connection measures it when it opens.
        self.engine = Engine(self.limit, self.window, self.policy, self.faults)
        self.events, self.count = [], 0
        self.starts, self.by_site, self.waits = [], {}, []
        self.site = [Site(self, i) for i in range(self.sites)]
        self.target, self.denials, self.next_home = 0, 0, lambda home: home
        if self.full:
            for i in range(self.limit):
                self.engine.add(Entry(ceil((i - self.limit) * self.window / self.limit), -1 << 60, 1, 0, 0, 0))

    def at(self, t, f, *args):
        self.count += 1
        heapq.heappush(self.events, (t, self.count, f, args))

    def run(self, until):
        while self.events and self.events[0][0] < until:
            self.now, _, f, args = heapq.heappop(self.events)
            f(*args)
        self.now = until
        return Result(self)

    def delay(self, home):
        r = self.random
        if (self.loss and r.random() < self.loss) or any(
            a <= self.now < b and home in h for a, b, h in self.partitions
        ):
            return None
        return self.rtt / 2 * r.uniform(0.7, 1.3) + (
            r.expovariate(1 / self.tail[1]) if r.random() < self.tail[0] else 0
        )

    def lateness(self):
        return self.random.expovariate(1 / 50)

    def arrive(self, site, m):
        answer = self.engine.ask(self.now, m)
        delay = self.delay(site.home)
        if delay is not None:
            self.at(self.now + delay, site.answer, m, *answer)

    def started(self, site):
        self.starts.append(self.now)
        self.by_site[site.id] = self.by_site.get(site.id, 0) + 1

    def waited(self, site, asked):
        self.waits.append((self.now, asked, self.due))
        if self.target:  # A closed loop: another caller replaces it.
            self.at(self.now + 1, self.join, self.next_home(site.home))

    # Loads.

    def join(self, home):
        self.site[home].wait(self.now)

    def waiters(self, each, homes=None):
        self.target = each
        for home in homes or range(self.sites):
            for _ in range(each):
                self.at(self.random.random() * self.window / 50, self.join, home)

    def poisson(self, home, rate, begin=0.0):
        """Adds callers that give up when they are denied. `rate` is a share of the limit."""

        def arrive():
            self.site[home].call(answered)
            self.at(self.now + self.random.expovariate(mean), arrive)

        def answered(start, _):
            self.denials += not start

        mean = rate * self.limit / self.window
        if mean:
            self.at(begin + self.random.expovariate(mean), arrive)

    def callers(self, each, where=None, obey=False):
        """Adds callers that retry after a denial: at `retry_after`, or much sooner."""

        def loop(home):
            def go():
                at = where(self.now) if where else home
                self.site[at].call(answered)

            def answered(start, retry_after):
                self.denials += not start
                poll = self.random.uniform(0.5, 1.5) * self.window / 500
                self.at(self.now + (10 if start else retry_after if obey else min(retry_after, poll)), go)

            self.at(self.random.random() * self.window / 50, go)

        for home in range(self.sites):
            for _ in range(each):
                loop(home)

    def kill(self, every):
        """Kills a site with all it holds, and replaces it by another with the same load."""

        def die():
            home = self.random.randrange(self.sites)
            old = self.site[home]
            old.dead = True
            self.died += sum(g.left for g in old.grants)
            self.site[home] = Site(self, home)
            for _ in old.line:
                self.join(home)
            for caller in old.joined:
                self.site[home].call(caller)
            self.at(self.now + every, die)

        self.at(every, die)

    def deny(self, denied):
        self.denials += denied

    def lose(self, at):
        """Makes the server forget everything, including its clock's past."""

        def forget():
            e = self.engine
            e.shift = e.last = 0
            e.new_epoch(e.clock(self.now))

        self.at(at, forget)

    def set_clock(self, at, by):
        self.at(at, lambda: setattr(self.engine, "step", self.engine.step + by))


class Result:
    def __init__(self, world):
        w, starts = world.window, sorted(world.starts)
        most = j = 0
        for i, t in enumerate(starts):
            while t - starts[j] >= w:
                j += 1
            most = max(most, i - j + 1)
        self.over = max(0, most - world.limit)
        self.starts = len(starts)
        warm = min(2 * w, world.now / 2)
        self.used = sum(t >= warm for t in starts) / (world.limit / w * (world.now - warm))
        self.requests = sum(world.requests.values())
        self.per_start = self.requests / max(1, len(starts))
        self.worst = max((n / max(1, world.by_site.get(s, 0)) for s, n in world.requests.items()), default=0)
        self.wasted = world.wasted / max(1, len(starts))
        self.log = world.engine.longest_log
        self.denials, self.died = world.denials, world.died
        self.parts = world.parts / max(1, self.requests)
        self.late = max((t - max(asked, due) for t, asked, due in world.waits), default=0)
        self.overtaken, latest = 0, 0
        for _, asked, _ in world.waits:
            self.overtaken, latest = max(self.overtaken, latest - asked), max(latest, asked)


# The tables. Each is a function that yields (row, result, remark).

LIMITS = {"1,000/1 s": (1_000, S, 10 * S), "20,000/10 s": (20_000, 10 * S, 50 * S), "100/2 s": (100, 2 * S, 40 * S)}


def play(name, load, seed, seconds=0, **options):
    limit, window, length = LIMITS.get(name) or name
    world = World(limit, window, seed=seed, **options)
    load(world)
    result = world.run(seconds * S or length)
    assert result.over == 0 or world.faults or not world.watch, f"{name}: {result.over} over the limit"
    return result


def even(share):
    return lambda w: [w.poisson(home, share / w.sites) for home in range(w.sites)]


def waiting(w):
    w.waiters(64)


def calling(w):
    w.callers(4)


def bursts(w):
    def burst():
        home = w.random.randrange(w.sites)
        for _ in range(w.limit // 4):
            w.site[home].call(lambda start, _: w.deny(not start))
        w.at(w.now + w.window / 2, burst)

    w.at(0, burst)


def moving(periods, wait):
    def load(w):
        hot = lambda t=None: int(w.now // (periods * w.window)) % w.sites
        w.next_home = lambda home: hot()
        w.waiters(max(16, w.limit // w.sites), homes=[0]) if wait else w.callers(8, where=hot)

    return load


def saturated(seed):
    loads = {"waiters": waiting, "callers": calling, "obedient callers": lambda w: w.callers(4, obey=True)}
    loads["one obedient caller a site"] = lambda w: w.callers(1, obey=True)
    for name in LIMITS:
        for what, load in loads.items():
            r = play(name, load, seed)
            yield f"{name}, {what}", r, f"log {r.log}, parts {r.parts:.1f}"


def loads(seed):
    for name in LIMITS:
        for share in (0.02, 0.5, 0.8, 0.95, 1.2, 2, 5):
            yield f"{name}, evenly {share:.0%}", play(name, even(share), seed), ""
        yield f"{name}, one site 80%", play(name, lambda w: w.poisson(0, 0.8), seed), ""
        r = play(name, bursts, seed, full=False)
        yield f"{name}, bursts of L/4, 50%", r, f"{r.denials} denied"


def hot(seed):
    for name in LIMITS:
        for periods in (0.5, 2):
            for what in ("waiters", "callers"):
                yield (
                    f"{name}, moves every {periods:g} W, {what}",
                    play(name, moving(periods, what == "waiters"), seed),
                    "",
                )


def failures(seed):
    for name, (_, window, length) in LIMITS.items():
        whole = play(name, waiting, seed)
        r = play(name, lambda w: (waiting(w), w.kill(window)), seed)
        yield f"{name}, a site dies every W", r, f"{r.died} units died, {whole.starts - r.starts} starts fewer"
    name = "1,000/1 s"
    yield "2% of messages lost", play(name, waiting, seed, loss=0.02), ""
    yield "20% of messages lost", play(name, calling, seed, loss=0.2), ""
    yield "late answers (10%, 60 ms)", play(name, calling, seed, tail=(0.1, 60 * MS)), ""
    yield "partition of 4 sites for 3 s", play(name, waiting, seed, partitions=((3 * S, 6 * S, range(4)),)), ""
    yield (
        "clocks off by the most",
        play("20,000/10 s", waiting, seed, rtt=100, tail=(0, 1), drift=1e-3, drift_extreme=True),
        "",
    )
    yield "memory lost at 8 s of 20 s", play(name, lambda w: (calling(w), w.lose(8 * S)), seed, 20), ""
    for step, watch in ((300 * MS, True), (300 * MS, False), (3600 * S, True), (-3600 * S, True)):
        r = play(name, lambda w: (calling(w), w.set_clock(8 * S, step)), seed, 20, watch=watch)
        yield f"server's clock {step / S:+g} s" + ("" if watch else ", unwatched"), r, ""


def trips(seed):
    for rtt in (300, 5 * MS, 25 * MS, 100 * MS, 250 * MS, S):
        for name in LIMITS:
            for what, load in (("waiters", waiting), ("callers", calling), ("evenly 80%", even(0.8))):
                yield f"{rtt / MS:g} ms, {name}, {what}", play(name, load, seed, rtt=rtt), ""
    for rtt in (25 * MS, 100 * MS):
        for trips in (2, 8):
            r = play("1,000/1 s", even(0.8), seed, rtt=rtt, policy=Policy(trips=trips))
            yield f"{rtt / MS:g} ms, 1,000/1 s, evenly 80%, trips = {trips}", r, ""


def order(seed):
    def load(w):
        for i in range(400):
            w.at(1 + (i // 4) * 420 * MS + (i % 4) * 30 * MS, w.join, i % 4)

    for tail in ((0, 1), World.tail):
        for limit in ((10, S, 50 * S), (1, 100 * MS, 50 * S), (4, 400 * MS, 50 * S)):
            r = play(limit, load, seed, sites=4, tail=tail)
            remark = f"overtaken by {r.overtaken / MS:.1f} ms, late by {r.late / MS:.2f} ms at most"
            yield f"{limit[0]}/{limit[1] / S:g} s" + (", some messages slow" if tail[0] else ""), r, remark


def faults(seed):
    name, slow = "1,000/1 s", {"tail": (0.005, 200 * MS), "patience": 2 * S}
    quick = {"rtt": 100, "tail": (0, 1), "drift": 1e-3, "drift_extreme": True}
    plan = [
        ("answer", name, calling, slow),
        ("drift", "20,000/10 s", waiting, quick),
        ("stamp", name, even(1.2), {}),
        ("epoch", name, lambda w: (calling(w), w.lose(5.3 * S)), {}),
        ("twice", name, calling, {"tail": (0.1, 60 * MS)}),
    ]
    for fault, limit, load, options in plan:
        sound, broken = play(limit, load, seed, **options), play(limit, load, seed, faults=(fault,), **options)
        assert broken.over > 0, fault
        yield fault, broken, f"without the fault {sound.over}"


def choices(seed):
    changes = [{}]
    changes += [
        {"length": 20},
        {"length": 80},
        {"swift": 1},
        {"swift": 4},
        {"ahead": 4},
        {"ahead": 8},
        {"ahead": 16},
        {"merge": 32},
        {"merge": 2},
    ]
    changes += [{"more": 1.5}, {"pace": 0}, {"pace": 2}, {"low": 0.25}, {"shorten": False}, {"fair": False}]
    for change in changes:
        policy, label = replace(Policy(), **change), ", ".join(f"{k} = {v}" for k, v in change.items()) or "as chosen"
        for what, load in (
            ("waiters", waiting),
            ("callers", calling),
            ("evenly 80%", even(0.8)),
            ("evenly 120%", even(1.2)),
        ):
            yield f"{label}: {what}", play("1,000/1 s", load, seed, 6, policy=policy), ""
        yield f"{label}: moves every W/2", play("1,000/1 s", moving(0.5, False), seed, 6, policy=policy), ""


TABLES = {f.__name__: f for f in (saturated, loads, hot, failures, trips, order, faults, choices)}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--scenario", choices=TABLES)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--list", action="store_true")
    args = args.parse_args()
    if args.list:
        return print(*TABLES, sep="\n")
    for name in [args.scenario] if args.scenario else TABLES:
        print(f"\n{name:44s} over   used  requests/start (worst site)  unused/start")
        for row, r, remark in TABLES[name](args.seed):
            print(
                f"{row:44s} {r.over:4d}  {r.used:.3f}  {r.per_start:9.4f} ({r.worst:.4f})  {r.wasted:9.3f}   {remark}",
                flush=True,
            )


if __name__ == "__main__":
    main()
