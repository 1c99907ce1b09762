"""Joint starts: one start that charges each part of a composite with a key and a weight of its own."""

import asyncio
import copy
import pickle
import random
from collections import Counter
from types import MappingProxyType

import pytest
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    ForeignPermit,
    InvalidArgument,
    ManualClock,
    RateLimiter,
    Store,
    WeightExceedsCapacity,
)

LLM = "requests: 5/1s + tokens: 100/1s + tenant: 2/1s + 9 concurrent"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store("memory:", clock=clock)


@pytest.fixture
def llm(store):
    return store.limiter("llm", LLM)


def left(store, part, key=None):
    return store.limiter(f"llm/{part}").peek(key).remaining


def test_one_start_charges_each_part(store, llm):
    with llm.acquire(weight={"tokens": 60}, key={"tenant": "acme"}, timeout=30) as start:
        assert (left(store, "requests"), left(store, "tokens")) == (4, 40)
        assert (left(store, "tenant", "acme"), left(store, "tenant")) == (1, 2)
        start.settle({"tokens": 10})
    assert (left(store, "requests"), left(store, "tokens"), left(store, "tenant", "acme")) == (4, 90, 1)
    assert left(store, "concurrency") == 9


def test_a_denial_charges_no_part_and_names_the_one(store, llm):
    start = llm.try_acquire(weight={"tokens": 90})
    denied = llm.decide({"tenant": "acme"}, {"tokens": 11})
    assert (denied.admitted, denied.denied_by, denied.retry_after) == (False, "llm/tokens", 1)
    assert llm.try_acquire(weight={"tokens": 11}) is None
    assert llm.reserve({"tenant": "acme"}, {"tokens": 11}, 0.5) is None
    assert not llm.peek({"tenant": "acme"}, {"tokens": 11})
    assert (left(store, "requests"), left(store, "tenant", "acme")) == (4, 2)
    start.cancel()
    assert (left(store, "requests"), left(store, "tokens")) == (5, 100)


def test_parts_without_one_of_their_own_get_the_start_s(store, llm):
    llm.try_acquire("acme", {"tokens": 60}).complete()
    assert (left(store, "requests", "acme"), left(store, "tokens", "acme")) == (4, 40)
    llm.try_acquire({"tenant": "zeta"}, 2).complete()
    assert (left(store, "requests"), left(store, "tokens"), left(store, "tenant", "zeta")) == (3, 98, 0)
    llm.try_acquire({"tenant": None}, MappingProxyType({"tokens": 5})).complete()
    assert (left(store, "tokens"), left(store, "tenant")) == (93, 1)
    llm.try_acquire({}, {}).complete()
    assert left(store, "requests") == 1


def test_a_place_keeps_its_charges(clock, store, llm):
    llm.try_acquire({"tenant": "acme"}, {"tokens": 100}).complete()
    place = llm.reserve({"tenant": "other"}, {"tokens": 80})
    assert (place.started, place.wait) == (False, 1)
    text = place.to_text()
    clock.advance(1)
    start = store.limiter("llm", LLM).present(text)
    assert start.started
    assert (left(store, "tokens"), left(store, "tenant", "other"), left(store, "tenant", "acme")) == (20, 1, 2)
    start.complete()
    place = llm.reserve(weight={"tokens": 30})
    for unwanted in {"key": {"tenant": "a"}}, {"weight": {"tokens": 1}}:
        with pytest.raises(InvalidArgument, match="^(key|weight) is {.*}: expected none with a place"):
            llm.acquire(place=place, **unwanted)
    clock.advance(1)
    llm.acquire(place=place).complete()
    assert left(store, "tokens") == 70


def test_in_an_event_loop(store, llm):
    async def main():
        async with llm.acquire_async({"tenant": "acme"}, {"tokens": 60}) as start:
            assert left(store, "tokens") == 40
            await start.settle_async({"tokens": 10})
        assert await llm.try_acquire_async(weight={"tokens": 91}) is None
        assert (await llm.decide_async(weight={"tokens": 91})).denied_by == "llm/tokens"
        assert await llm.peek_async(weight={"tokens": 90})
        (await llm.acquire_async("mine", {"tokens": 100, "requests": 5})).complete()
        with pytest.raises(AcquireTimeout) as expired:
            await llm.acquire_async("mine", {"tokens": 1}, 0)
        assert expired.value.key == "mine"

    asyncio.run(main())


def test_new_keys_in_an_event_loop(tmp_path):
    """The space for a new key was once made for the whole start's key, and never for the part's: after some 6,000 keys nothing
    started any more."""
    llm = Store(f"sqlite:{tmp_path}/s.db").limiter("openai", "requests: 100000/1h + tenant: 5/1h")

    async def start(numbers):
        for i in numbers:
            (await llm.acquire_async(key={"tenant": f"t{i}"}, timeout=600)).complete()

    async def main():
        await asyncio.gather(*(start(range(i, 9_000, 200)) for i in range(200)))

    asyncio.run(main())
    assert llm.peek().remaining == 5
    assert llm.stats().admitted == 9_000


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_joint_start_that_ends_wakes_waiters_with_other_charges(is_loop):
    limiter = Store("memory:").limiter("gpu", "slots: 1 concurrent + tokens: 1000/1s")
    order = []

    async def work(tokens):
        async with limiter.acquire_async(weight={"tokens": tokens}):
            order.append(tokens)
            await asyncio.sleep(0)

    async def main():
        first = await limiter.acquire_async(weight={"tokens": 1})
        waiting = [asyncio.ensure_future(work(tokens)) for tokens in (2, 3, 4)]
        await asyncio.sleep(0)
        if is_loop:
            await first.complete_async()
        else:
            first.complete()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert sorted(order) == [2, 3, 4]


def test_a_timeout_has_the_start_s_own_key(llm):
    llm.try_acquire("acme", {"tokens": 100}).complete()
    for key, own in ("acme", "acme"), ({"tokens": "acme"}, None):
        with pytest.raises(AcquireTimeout) as expired:
            llm.acquire(key, {"tokens": 1}, timeout=0.1)
        assert (expired.value.key, expired.value.retry_after) == (own, 1)
        assert "\U0010ffff" not in str(expired.value)


def test_hooks_get_the_key_of_the_part(llm):
    events = []
    llm.on("throttled", lambda event: events.append((event.limit, event.key)))
    for _ in range(2):
        llm.try_acquire({"tenant": "acme"}, {"tokens": 2}).complete()
    assert llm.try_acquire({"tenant": "acme"}, {"tokens": 2}) is None
    assert events == [("llm/tenant", "acme")]


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"weight": {"token": 1}}, InvalidArgument, '^part is "token".*tokens'),
        ({"key": {"tenants": "a"}}, InvalidArgument, '^part is "tenants".*tenant'),
        ({"weight": {"tokens": 0}}, InvalidArgument, '^weight is 0: expected a whole number .* for part "tokens"$'),
        ({"weight": {"tokens": -1}}, InvalidArgument, '^weight is -1: expected a whole number .* for part "tokens"$'),
        (
            {"weight": {"tokens": "1"}},
            TypeError,
            "^weight is '1': expected a whole number for part \"tokens\", not str$",
        ),
        ({"weight": {"tokens": True}}, TypeError, "^weight is True: expected a whole number"),
        ({"weight": {5: 1}}, TypeError, "^weight is 5: expected the name of a part as a str, not int$"),
        ({"key": {"tenant": 5}}, TypeError, '^key is 5: expected a str or None for part "tenant", not int$'),
        ({"key": {"tenant": "x" * 1025}}, InvalidArgument, '^key is .* for part "tenant"$'),
        ({"key": {"tenant": "\ud800"}}, InvalidArgument, "^key is .*: expected text that UTF-8 can encode$"),
        ({"weight": [1]}, TypeError, r"^weight is \[1\]: expected a whole number, not list"),
        ({"weight": {"tokens": 101}}, WeightExceedsCapacity, "llm/tokens"),
    ],
)
def test_errors_name_the_part(store, llm, arguments, error, text):
    for call in llm.try_acquire, llm.decide, llm.peek, llm.acquire, llm.reserve:
        with pytest.raises(error, match=text):
            call(**arguments)
    assert (left(store, "requests"), left(store, "tokens")) == (5, 100)


def test_a_limit_without_parts_has_none(store):
    limiter = store.limiter("one", "5/1s")
    with pytest.raises(InvalidArgument, match='^part is "tokens"'):
        limiter.try_acquire(weight={"tokens": 1})
    permit = limiter.try_acquire({}, {})
    with pytest.raises(InvalidArgument, match='^part is "tokens"'):
        permit.settle({"tokens": 1})
    permit.settle(0)
    assert limiter.peek().remaining == 5


def test_settling_parts_that_are_wrong_ends_nothing(store, llm):
    permit = llm.try_acquire(weight={"tokens": 50})
    for wrong, error in (
        ({"token": 1}, InvalidArgument),
        ({"tokens": -1}, InvalidArgument),
        ({"tokens": "1"}, TypeError),
    ):
        with pytest.raises(error):
            permit.settle(wrong)
    assert left(store, "concurrency") == 8
    permit.settle({"tokens": 120})
    assert (left(store, "tokens"), left(store, "concurrency")) == (0, 9)


def named(store):
    rate = RateLimiter(store, "calls", max_executions=5, window_size_in_seconds=1)
    return CompositeLimiter({"requests": rate, "slots": ConcurrencyLimiter(2, store=store, name="gpu")})


def test_a_composite_has_names_for_its_parts(store):
    limiter = named(store)
    permit = limiter.try_acquire({"slots": "gpu-1"}, {"requests": 4})
    assert limiter.decide(weight={"requests": 2}).denied_by == "calls"
    limiter.add(RateLimiter(store, "tokens", max_executions=9, window_size_in_seconds=1), "tokens")
    start = limiter.try_acquire({"slots": "gpu-1"}, {"tokens": 9})
    assert limiter.try_acquire({"slots": "gpu-1"}) is None
    permit.complete()
    start.complete()
    assert repr(limiter).startswith("<CompositeLimiter of {'requests': <RateLimiter")
    with pytest.raises(InvalidArgument, match="^part is .*calls.*requests, slots, tokens"):
        limiter.try_acquire(weight={"calls": 1})


def test_parts_are_called_as_their_limits(store):
    limiter = CompositeLimiter([store.limiter("a", "5/1s"), store.limiter("b", "9/1s")])
    limiter.try_acquire(weight={"b": 9})
    assert limiter.decide(weight={"a": 4}).denied_by == "b"


def test_wrong_names_of_parts(store):
    rate = store.limiter("a", "5/1s")
    with pytest.raises(TypeError, match="^limiters is 5: expected an iterable of limiters, or a mapping"):
        CompositeLimiter(5)
    with pytest.raises(TypeError, match="^limiters is 5: expected a limiter"):
        CompositeLimiter({"a": 5})
    for name, error in (5, TypeError), ("", InvalidArgument):
        with pytest.raises(error, match="^name is "):
            CompositeLimiter({name: rate})
    with pytest.raises(InvalidArgument, match="^name is None: expected a name"):
        CompositeLimiter({}).add(rate)
    with pytest.raises(InvalidArgument, match="^name is 'a': expected none"):
        CompositeLimiter([]).add(rate, "a")
    with pytest.raises(InvalidArgument, match="^name is .*a.*twice"):
        CompositeLimiter({"a": rate}).add(store.limiter("b", "5/1s"), "a")


def test_a_pickle_has_the_names(tmp_path):
    limiter = named(Store(f"sqlite:{tmp_path}/limits.db"))
    limiter.try_acquire(weight={"requests": 3}).complete()
    again = pickle.loads(pickle.dumps(limiter))
    assert again.decide(weight={"requests": 3}).denied_by == "calls"
    assert copy.copy(limiter) is limiter
    with limiter.acquire() as permit, pytest.raises(ForeignPermit):
        again.complete(permit)


def test_decorated_functions(store, llm):
    @llm.limit(key={"tenant": "tenant"}, weight={"tokens": "tokens"})
    def ask(tenant, tokens):
        return left(store, "tokens"), left(store, "tenant", tenant)

    assert ask("acme", 60) == (40, 1)

    @llm.limit(key=lambda tenant: {"tenant": tenant}, weight=lambda tenant: {"tokens": 10})
    async def later(tenant):
        return left(store, "tokens"), left(store, "tenant", str(tenant))

    assert asyncio.run(later(7)) == (30, 1)
    wrapped = llm.wrap(left, key={"tenant": lambda *_: "zeta", "requests": None}, weight={"tokens": 5, "requests": 2})
    assert wrapped(store, "tenant", "zeta") == 1
    assert (left(store, "tokens"), left(store, "requests")) == (25, 1)


def test_wrong_options_of_decorators(llm):
    def function(tenant, tokens):
        pass

    for options, error, text in (
        ({"key": {"tenant": "tenants"}}, InvalidArgument, "an argument of the function: tenant, tokens"),
        ({"weight": {"tokens": 0}}, InvalidArgument, r"^weight\['tokens'\] is 0"),
        ({"weight": {5: 1}}, TypeError, "^weight is 5: expected the name of a part"),
    ):
        with pytest.raises(error, match=text):
            llm.limit(**options)(function)
    for options, error, text in (
        ({"key": lambda *_: {"tenant": object()}}, TypeError, r"^key\['tenant'\] is <object"),
        ({"weight": lambda *_: {"tokens": 0}}, InvalidArgument, r"^weight\['tokens'\] is 0"),
        ({"weight": lambda *_: {"token": 1}}, InvalidArgument, '^part is "token"'),
    ):
        with pytest.raises(error, match=text):
            llm.limit(**options)(function)("acme", 1)


def test_no_part_is_exceeded_and_no_start_denied_falsely(clock, store):
    """The cookbook's first two recipes: what the parts admit together, and what each of them would."""
    llm = store.limiter("llm", LLM.replace(" + 9 concurrent", ""))
    most = {("requests", None): 5, ("tokens", None): 100} | {("tenant", name): 2 for name in "ab"}
    pick, now, starts = random.Random(7), 0, []
    admitted = Counter()
    for _ in range(3000):
        step = pick.choice([0, 1, 20, 130, 400])
        clock.advance(step / 1000)
        now += step
        tenant, tokens = pick.choice("ab"), pick.randint(1, 60)
        charges = {("requests", None): 1, ("tokens", None): tokens, ("tenant", tenant): 1}
        used = Counter()
        for at, start in starts:
            if at > now - 1000:
                used.update(start)
        has_room = all(used[part] + units <= most[part] for part, units in charges.items())
        permit = llm.try_acquire({"tenant": tenant}, {"tokens": tokens})
        assert (permit is not None) == has_room, (now, used, charges)
        admitted[has_room] += 1
        if permit is not None:
            permit.complete()
            starts = [(at, start) for at, start in starts if at > now - 1000] + [(now, charges)]
    assert min(admitted.values()) > 500


def test_parts_are_limiters_of_their_own(store, llm):
    parts = llm.parts
    assert list(parts) == ["requests", "tokens", "tenant", "concurrency"]
    assert [part.name for part in parts.values()] == [f"llm/{name}" for name in parts]
    llm.try_acquire({"tenant": "acme"}, {"tokens": 60}).complete()
    assert (parts["tokens"].peek().remaining, parts["tenant"].peek("acme").remaining) == (40, 1)
    parts["tokens"].try_acquire(weight=40)
    assert llm.decide(weight={"tokens": 1}).denied_by == "llm/tokens"
    parts.clear()
    assert len(llm.parts) == 4 and parts == store.limiter("alone", "1/1s").parts == {}


def test_parts_within_parts(store, llm):
    outer = CompositeLimiter({"llm": llm, "mine": store.limiter("mine", "3/1s")})
    assert outer.parts["llm"].parts["tokens"].name == "llm/tokens"
    assert outer.parts["mine"].try_acquire(weight=3) and not outer.try_acquire()
    outer.add(store.limiter("more", "1/1s"), "more")
    assert list(outer.parts) == ["llm", "mine", "more"]


def test_parts_travel(tmp_path):
    llm = Store(f"sqlite:{tmp_path}/s.db").limiter("llm", LLM)
    tokens = llm.parts["tokens"]
    assert copy.copy(tokens) is tokens and "llm/tokens" in repr(tokens) and str(tmp_path) in repr(tokens)
    pickle.loads(pickle.dumps(tokens)).try_acquire(weight=70)
    assert llm.parts["tokens"].peek().remaining == 30
