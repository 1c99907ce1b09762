"""Runs tests/vectors/*.vec on every store. The format is in tests/vectors/README.md."""

import os
import re
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    FirstOfLimiter,
    FixedWindowLimiter,
    LeakyBucketLimiter,
    LimitError,
    ManualClock,
    NullLimiter,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Store,
    TokenBucketLimiter,
)

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"


class Case:
    def __init__(self, name, number):
        self.name, self.number, self.limiters, self.steps = name, number, [], []
        self.is_first_of = False

    @property
    def kind(self):
        if self.is_first_of:
            return "first_of"
        return self.limiters[0][0] if len(self.limiters) == 1 else "composite"

    def name_of(self, limit):
        """The name of a limit. No two cases use limits of one name, so that they can share a server's database."""
        return f"{limit}.{self.number}"

    @property
    def parts(self):
        """The names of the limiter's parts: those in its text, or else those of its limits."""
        if len(self.limiters) > 1 and not self.is_first_of:
            return [f"limit-{number}" for number in range(1, len(self.limiters) + 1)]
        return [word[:-1] for word in self.limiters[0] if word.endswith(":")]

    def limit_of(self, name):
        """What the case calls the limit of a name."""
        return name.replace(f".{self.number}", "")


class Pairs(dict):
    """A mapping that may have a key twice, which a call must refuse."""

    def __init__(self, pairs):
        super().__init__(pairs)
        self.pairs = pairs

    def items(self):
        return self.pairs


def joint(case, arguments, key, weight):
    """Returns the key and the weight of a start with charges. In Python a mapping has them, so it also has the start's own of all
    other parts."""
    charges = [charge.split(":", 2) for charge in arguments["charges"].split(",")]
    keys = [(part, own) for part, _, own in charges if own != "-"]
    weights = [(part, int(units)) for part, units, _ in charges if units != "-"]

    def whole(of, own):
        named = {part for part, _ in of}
        return Pairs([*of, *((part, own) for part in dict.fromkeys(case.parts) if part not in named)])

    if keys:
        key = whole(keys, key) if key else Pairs(keys)
    if weights and weight:  # A start that weighs 0 does so at each part.
        weight = whole(weights, weight) if weight != 1 else Pairs(weights)
    return key, weight


class AtOnce:
    """A custom limiter: a number of units at once, per key."""

    name = "custom"

    def __init__(self, most):
        self.most, self.running = most, Counter()

    def retry_after(self, key, weight):
        return 0 if self.running[key] + weight <= self.most else 0.01

    def try_acquire(self, key, weight):
        if self.retry_after(key, weight):
            return None
        self.running[key] += weight
        return key, weight

    def complete(self, start):
        key, weight = start
        self.running[key] -= weight

    cancel = complete


@pytest.fixture(scope="module", autouse=True)
def cells():
    """The number of cases by kind of limiter and store, written to the file WGL_CELLS."""
    counted = Counter()
    yield counted
    if folder := os.environ.get("WGL_CELLS"):
        lines = (f"{kind} {store} {count}\n" for (kind, store), count in sorted(counted.items()))
        Path(folder, "python").write_text("".join(lines))


def cases():
    found = []
    for file in sorted(VECTORS.glob("*.vec")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            line = line.split("#")[0].strip()
            word, _, rest = line.partition(" ")
            if word == "case":
                found.append(Case(f"{file.stem}: {rest}", len(found)))
            elif word == "first_of":
                found[-1].is_first_of = True
            elif word == "limiter":
                found[-1].limiters.append(rest.split())
            elif word:
                found[-1].steps.append((f"{file.name}:{number}", line))
    return found


def span(us):
    return timedelta(microseconds=us)


def limiter_of(case, store):

    def one(number, kind, *words):
        name = case.name_of(f"limit-{number}")
        match kind, *(int(word) if word.isdigit() else word for word in words):
            case ("null",):
                return NullLimiter()
            case "policy", *_:
                return store.limiter(name, " ".join(words))
            case "custom", most:
                return CompositeLimiter([AtOnce(most)])
            case "concurrency", most, *lease:
                return ConcurrencyLimiter(most, store=store, name=name, lease=span(*lease) if lease else None)
            case "delay", delay:
                return DelayLimiter(span(delay), store=store, name=name)
            case "evenly_spaced", most, window, how:
                return EvenlySpacedRateLimiter(
                    max_executions=most, window_size_in_seconds=span(window), adaptive={"adaptive": True, "strict": False}[how],
                    store=store, name=name,
                )  # fmt: skip
            case "token_bucket", rate, period, burst:
                return TokenBucketLimiter(store, name, rate=rate, period=span(period), burst=burst)
            case "leaky_bucket", rate, period, queue:
                return LeakyBucketLimiter(store, name, rate=rate, period=span(period), queue=queue)
            case "fixed_window", most, window:
                return FixedWindowLimiter(store, name, max_executions=most, window_size_in_seconds=span(window))
            case "sliding_window_counter", most, window:
                return SlidingWindowCounterLimiter(
                    store, name, max_executions=most, window_size_in_seconds=span(window)
                )
            case "rate", *windows, "backoff", initial, thousandths, longest, jitter:
                return in_windows(name, windows, initial_backoff_delay=span(initial), backoff_multiplier=thousandths / 1000,
                                  max_backoff_delay=span(longest), jitter=jitter)  # fmt: skip
            case "rate", *windows:
                return in_windows(name, windows)
        raise AssertionError(kind)

    def in_windows(name, numbers, **backoff):
        windows = [(most, span(us)) for most, us in zip(numbers[::2], numbers[1::2], strict=True)]
        if len(windows) > 1:
            return RateLimiter(store, name, windows=windows, **backoff)
        [(most, window)] = windows
        return RateLimiter(store, name, max_executions=most, window_size_in_seconds=window, **backoff)

    children = [one(number, *words) for number, words in enumerate(case.limiters, 1)]
    if case.is_first_of:
        return FirstOfLimiter(children), children
    if len(children) == 1:
        return children[0], children
    return CompositeLimiter({f"limit-{number}": child for number, child in enumerate(children, 1)}), children


def us(seconds):
    return str(round(seconds * 1e6))


def number(n):
    return "inf" if n is None else str(n)


def answer_of(case, decision):
    assert bool(decision) == decision.admitted
    return {
        "": "admitted" if decision.admitted else "denied",
        "retry": us(decision.retry_after),
        "suggested": us(decision.suggested_after),
        "reset": us(decision.reset_after),
        "remaining": number(decision.remaining),
        "limit": number(decision.limit),
        "by": case.limit_of(str(decision.denied_by)).replace(" ", "_"),
    }


def ready_after(place):
    # A wait is never too short. It is longer by the time that the thread was delayed between two reads of the clock.
    return us(min(place.wait for _ in range(5)))


def do(case, store, made, call, arguments, permits):
    """Runs one step. Returns its answer, field by field."""
    (limiter, children), key, named = made, arguments.get("key"), arguments.get("permit")
    weight = int(arguments.get("weight", 1))
    if "charges" in arguments:
        key, weight = joint(case, arguments, key, weight)
    length = span(int(arguments.get("for", 0)))

    def keep(permit):
        permits[arguments.get("as", object())] = permit

    def chosen(permit):
        """Of alternatives: which one has it."""
        return {"chosen": str(children.index(permit.chosen))} if case.is_first_of and permit is not None else {}

    match call:
        case "decide":
            decision = limiter.decide(key, weight)
            keep(decision.permit)
            return answer_of(case, decision) | chosen(decision.permit)
        case "peek":
            return answer_of(case, limiter.peek(key, weight))
        case "try_acquire":
            permit = limiter.try_acquire(key=key, weight=weight)
            keep(permit)
            return {"": "denied" if permit is None else "admitted"} | chosen(permit)
        case "acquire":
            try:
                grace = span(int(arguments["grace"])) if "grace" in arguments else None
                keep(limiter.acquire(key, weight, timeout=length, grace=grace))
            except AcquireTimeout:
                return {"": "expired"}
            return {"": "admitted"}
        case "can_proceed":
            return {"": "yes" if limiter.can_proceed(key) else "no"}
        case "next_available":
            after = limiter.get_next_available_time(key) - datetime.now(timezone.utc)
            return {"next": after}
        case "complete":
            limiter.complete(permits[named])
        case "cancel":
            permits[named].cancel()
        case "arrived":
            permits[named].arrived()
        case "renew":
            permits[named].renew()
        case "stats":
            stats = limiter.stats(key)
            units = {"wanted": stats.units_wanted, "granted": stats.units_granted}
            counts = {name: getattr(stats, name) for name in ("admitted", "denied", "waited", "cancelled")}
            return {name: str(count) for name, count in (units | counts).items()}
        case "settle":
            if "parts" in arguments:
                parts = (part.rsplit(":", 1) for part in arguments["parts"].split(","))
                permits[named].settle({part: int(units) for part, units in parts})
            else:
                permits[named].settle(int(arguments["actual"]))
        case "reserve":
            most, grace = (arguments.get(name) for name in ("for", "grace"))
            most, grace = (None if us is None else span(int(us)) for us in (most, grace))
            place = limiter.reserve(key, weight, most, grace)
            if place is None:
                return {"": "denied", "after": us(limiter.peek(key, weight).retry_after)}
            assert not place.started
            keep(place)
            return {"": "place", "after": ready_after(place)} | chosen(place)
        case "present":
            permit = permits[named] = limiter.present(permits[named])
            return ({"": "started"} if permit.started else {"": "wait", "after": ready_after(permit)}) | chosen(permit)
        case "record_job_start" | "record_job_completion" | "clear":
            getattr(limiter, call)(key)
        case "override":
            store.override(case.name_of(arguments.get("of", "limit-1")), arguments["policy"].replace("_", " "), key)
        case "lift":
            store.lift(case.name_of(arguments.get("of", "limit-1")), key)
        case "pause":
            of = arguments.get("of")
            (children[int(of.removeprefix("limit-")) - 1] if of else limiter).pause(length, key)
        case _:
            raise AssertionError(call)
    return {}


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request, tmp_path):
    if request.param == "redis":
        return request.getfixturevalue("the_server").url
    if request.param == "postgres":
        return request.getfixturevalue("the_postgres")
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path}/limits.db"


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_vector(case, url, cells):
    clock = ManualClock()
    store = Store(url, clock=clock)
    made = limiter_of(case, store)
    now, permits = 0, {}
    assert case.steps
    for where, step in case.steps:
        call, _, wanted = step.partition("=>")
        at, call, *arguments = call.split()
        clock.advance(span(int(at) - now))
        now = int(at)
        try:
            answer = do(case, store, made, call, dict(word.split("=") for word in arguments), permits)
        except LimitError as error:
            answer = {"error": error.code}
        wanted = dict(word.split("=") if "=" in word else ("", word) for word in wanted.split())
        if "next" in answer:
            # The wall clock advances between the call and the comparison.
            wanted = timedelta(microseconds=int(wanted["retry"]))
            assert abs(answer["next"] - wanted) < timedelta(seconds=2), where
            continue
        assert ("error" in answer) == ("error" in wanted), f"{where}: {answer}"
        assert {field: answer.get(field) for field in wanted} == wanted, f"{where}: {answer}"
    for permit in permits.values():
        if permit is not None:
            permit.complete()
    cells[case.kind, re.match("[a-z]+", url)[0]] += 1


def test_vectors_exist():
    assert {case.name.split(":")[0] for case in cases()} >= {"rate", "concurrency", "composite"}
