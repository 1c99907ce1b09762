"""Alternatives: the permit says which limiter was charged, and waiters of every kind follow whichever is free first."""

import asyncio
import contextlib
import pickle
import threading

import pytest
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    FirstOfLimiter,
    InvalidArgument,
    ManualClock,
    Store,
    Unsupported,
    WeightExceedsCapacity,
)


def start(limiter, **given):
    """Starts and completes a job. Returns the limiter that was charged."""
    with limiter.try_acquire(**given) as permit:
        return permit.chosen


class Mine:
    """A limiter written in Python: one start."""

    name = "mine"

    def __init__(self):
        self.starts = 0

    def retry_after(self, key, weight):
        return 10.0 if self.starts else 0

    def try_acquire(self, key, weight):
        if self.starts:
            return None
        self.starts += 1
        return self

    def complete(self, start):
        self.starts -= 1

    cancel = complete


@pytest.fixture
def store():
    return Store("memory:", clock=ManualClock())


@pytest.fixture
def full():
    """A limit that is used up for an hour, a job that holds the only slot of another, and both as alternatives."""
    store = Store("memory:")
    hourly, slot = store.limiter("hourly", "1/1h"), ConcurrencyLimiter(1)
    either = FirstOfLimiter([hourly, slot])
    assert start(either) is hourly
    return either, slot, either.try_acquire()


def test_the_permit_says_which(store):
    azure, openai = store.limiter("azure", "1/1s"), store.limiter("openai", "1/2s")
    urls = {azure: "https://azure.example", openai: "https://openai.example"}
    either = FirstOfLimiter([azure, openai])
    with either.acquire() as first, either.acquire() as second:
        assert [urls[permit.chosen] for permit in (first, second)] == list(urls.values())
    assert first.chosen is azure, "after its end, too"
    denied = either.decide()
    assert (denied.denied_by, denied.retry_after) == ("azure", 1.0)
    assert azure.try_acquire() is None and openai.try_acquire() is None
    place = either.reserve()
    assert place.chosen is azure and either.place(place.to_text()).chosen is azure
    assert start(ConcurrencyLimiter(1)) is None


def test_alternatives_in_composites_and_in_one_another(store):
    x, y, z = (store.limiter(name, "1/1s") for name in "xyz")
    nested = FirstOfLimiter([x, FirstOfLimiter([y, z])])
    assert [start(nested) for _ in "xyz"] == [x, y, z]
    a, b = store.limiter("a", "1/1s"), store.limiter("b", "1/1s")
    both = CompositeLimiter({"provider": FirstOfLimiter([a, b]), "all": store.limiter("all", "5/1s")})
    assert [start(both) for _ in "ab"] == [a, b]


def test_parts_of_alternatives(store):
    one, two = (store.limiter(name, "requests: 9/1s + tokens: 100/1s") for name in ("one", "two"))
    either = FirstOfLimiter([one, two])
    permits = [either.try_acquire(weight={"tokens": 60}) for _ in range(2)]
    assert [permit.chosen for permit in permits] == [one, two]
    permits[1].settle({"tokens": 5})
    permits[0].complete()
    assert either.peek(weight={"tokens": 95}).admitted
    with pytest.raises(WeightExceedsCapacity, match="one/tokens"):
        either.try_acquire(weight={"tokens": 101})
    with pytest.raises(InvalidArgument, match='"token".*expected a part of limiter "one": requests, tokens'):
        either.try_acquire(weight={"token": 1})


def test_an_object_written_in_python(store):
    mine = Mine()
    either = FirstOfLimiter([mine, store.limiter("x", "1/1s")])
    with either.acquire() as permit:
        assert permit.chosen is mine
        assert start(either).name == "x"


def started(limiter, count):
    """Starts jobs, and ends them. Returns the limiters that were charged."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(limiter.try_acquire()).chosen for _ in range(count)]


def test_objects_written_in_python_inside_others(store):
    one, two, three = (store.limiter(name, "1/1h") for name in ("one", "two", "three"))
    mine, inner, other = Mine(), Mine(), Mine()
    both = CompositeLimiter([one, inner])
    assert started(FirstOfLimiter([both, mine]), 2) == [both, mine]
    assert started(FirstOfLimiter([FirstOfLimiter([two, mine]), three]), 3) == [two, mine, three]

    named = CompositeLimiter({})
    either = FirstOfLimiter([named, one])
    pair = FirstOfLimiter([mine])
    pair.add(other)
    named.add(pair, "pair")
    assert started(either, 2) == [mine, other]


def test_a_thread_starts_where_a_job_ends(full):
    either, slot, job = full
    chosen = []

    def work():
        with either.acquire(timeout=600) as permit:
            chosen.append(permit.chosen)

    thread = threading.Thread(target=work)
    thread.start()
    job.complete()
    thread.join()
    assert chosen == [slot]


def test_a_task_starts_where_a_job_ends(full):
    either, slot, job = full

    async def wait():
        async with either.acquire_async(timeout=600) as permit:
            return permit.chosen

    async def scenario():
        waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        job.complete()
        return await asyncio.gather(*waiting)

    assert asyncio.run(scenario()) == [slot] * 3


def test_a_wait_in_vain(full):
    either, _, job = full
    with pytest.raises(AcquireTimeout):
        either.acquire(timeout=0)
    with pytest.raises(AcquireTimeout):
        either.acquire(timeout=0.05)
    job.complete()


def test_another_process_makes_the_same(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    either = FirstOfLimiter([store.limiter("a", "1/1h"), store.limiter("b", "1/1h")])
    assert start(either).name == "a"
    again = pickle.loads(pickle.dumps(either))
    assert repr(again) == repr(either) and repr(either).startswith("<FirstOfLimiter of [<")
    assert start(again).name == "b"
    assert not either.can_proceed()


def test_wrong_arguments(store):
    limiter = store.limiter("x", "1/1s")
    for wrong in 5, {"x": limiter}:
        with pytest.raises(TypeError, match="expected an iterable of limiters, the preferred one first"):
            FirstOfLimiter(wrong)
    with pytest.raises(InvalidArgument, match="limiters.*at least one limiter"):
        FirstOfLimiter([])
    either = FirstOfLimiter([limiter])
    with pytest.raises(InvalidArgument, match="one that contains this one"):
        either.add(either)
    either.add(store.limiter("y", "1/1s"))
    assert {start(either).name for _ in range(2)} == {"x", "y"}
    with pytest.raises(Unsupported, match="record the start at the one where the job runs"):
        either.record_job_start()
    with pytest.raises(Unsupported, match="without a timed limit"):
        FirstOfLimiter([ConcurrencyLimiter(1), ConcurrencyLimiter(2)]).reserve()
