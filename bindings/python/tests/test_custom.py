"""Limiters written in Python, as children of a composite."""

import asyncio
import sys
import threading
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from conftest import run
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    InvalidArgument,
    LimitError,
    ManualClock,
    RateLimiter,
    Store,
)


class AtOnce:
    """Admits a number of units at once, per key. It records its calls, and raises a given exception."""

    def __init__(self, most):
        self.most, self.running, self.calls, self.lock = most, Counter(), [], threading.Lock()
        self.raises = {}

    def called(self, *call):
        self.calls.append(call)
        if error := self.raises.get(call[0]):
            raise error

    def try_acquire(self, key, weight):
        self.called("try_acquire", key, weight)
        with self.lock:
            if self.running[key] + weight > self.most:
                return None
            self.running[key] += weight
        return key, weight

    def retry_after(self, key, weight):
        self.called("retry_after", key, weight)
        return 0 if self.running[key] + weight <= self.most else timedelta(milliseconds=1)

    def complete(self, token):
        self.called("complete", token)
        self.release(*token)

    def cancel(self, token):
        self.called("cancel", token)
        self.release(*token)

    def release(self, key, weight):
        with self.lock:
            self.running[key] -= weight


class Whole(AtOnce):
    """A limiter with all optional methods."""

    name = "whole"

    def settle(self, token, actual):
        self.called("settle", token, actual)
        self.release(*token)

    def pause(self, seconds, key):
        self.called("pause", seconds, key)

    def clear(self, key):
        self.called("clear", key)

    def record_job_start(self, key):
        self.called("record_job_start", key)

    def record_job_completion(self, key):
        self.called("record_job_completion", key)


class Jobs:
    """The six methods of job queues, without keys."""

    def __init__(self, most):
        self.most, self.running, self.gate = most, 0, datetime.now(timezone.utc)

    def can_proceed(self):
        return self.running < self.most and self.gate <= datetime.now(timezone.utc)

    def record_job_start(self):
        self.running += 1

    def record_job_completion(self):
        self.running -= 1

    def get_next_available_time(self):
        return max(self.gate, datetime.now(timezone.utc))

    def set_next_available_time(self, when):
        self.gate = max(self.gate, when)

    def clear(self):
        self.running, self.gate = 0, datetime.now(timezone.utc)


def rate(n=10):
    return RateLimiter(Store("memory:"), "rate", max_executions=n, window_size_in_seconds=60)


def test_a_custom_limiter_decides_with_others():
    own, other = AtOnce(2), rate()
    both = CompositeLimiter([other, own])
    with both.acquire("k", 2) as permit:
        denial = both.decide("k")
        assert (bool(denial), denial.denied_by, denial.retry_after) == (False, "AtOnce", 0.001)
        assert both.try_acquire("k") is None and not both.can_proceed("k") and both.can_proceed("j")
        # The other children were not charged.
        assert other.peek("k").remaining == 8
        permit.complete()
    assert [call for call in own.calls if call[0] == "complete"] == [("complete", ("k", 2))]
    assert own.running["k"] == 0


def test_a_custom_limiter_is_not_charged_if_another_denies():
    own, other = AtOnce(2), rate(1)
    both = CompositeLimiter([own, other])
    with both.acquire():
        assert both.decide().denied_by == "rate"
        assert own.running[None] == 1


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda permit: permit.complete(), ("complete", (None, 2))),
        (lambda permit: permit.cancel(), ("cancel", (None, 2))),
        (lambda permit: permit.settle(7), ("settle", (None, 2), 7)),
    ],
)
def test_the_end_of_a_start_reaches_the_limiter(end, expected):
    own = Whole(2)
    end(CompositeLimiter([own]).acquire(weight=2))
    assert own.calls[-1] == expected
    # A limiter without settle is completed.
    own = AtOnce(2)
    end(CompositeLimiter([own]).acquire(weight=2))
    assert own.calls[-1] == (expected if expected[0] != "settle" else ("complete", (None, 2)))


def test_the_rest_of_the_interface():
    own = Whole(1)
    both = CompositeLimiter([own])
    both.peek()  # The first use.
    own.calls.clear()
    both.pause(1.5, "k")
    both.clear()
    both.record_job_start("k")
    both.record_job_completion("k")
    assert own.calls == [
        ("pause", 1.5, "k"), ("clear", None), ("record_job_start", "k"), ("record_job_completion", "k")
    ]  # fmt: skip
    both.set_next_available_time(datetime.now(timezone.utc) + timedelta(seconds=60))
    name, seconds, key = own.calls[-1]
    assert (name, key) == ("pause", None) and 50 < seconds <= 60
    # A missing optional method does nothing.
    less = CompositeLimiter([AtOnce(1)])
    less.pause(1)
    less.clear("k")
    less.record_job_start()
    less.record_job_completion()
    assert less.can_proceed()


def test_names():
    own = Whole(0)
    assert CompositeLimiter([own]).decide().denied_by == "whole"
    for name in "", 5, None:
        own.name = name
        assert CompositeLimiter([own]).decide().denied_by == "Whole"
    own.name = "n" * 1025
    with pytest.raises(InvalidArgument, match="^name is 1025 bytes long"):
        CompositeLimiter([own])


def test_a_token_is_anything_but_none_and_false():
    own, ended = AtOnce(1), []
    own.complete = ended.append
    for token in 0, "", True, [], object():
        own.try_acquire = lambda key, weight, token=token: token
        CompositeLimiter([own]).acquire().complete()
        assert ended.pop() is token
    for token in None, False:
        own.try_acquire = lambda key, weight, token=token: token
        assert CompositeLimiter([own]).try_acquire() is None
    assert ended == []


def test_the_six_methods():
    own = Jobs(2)
    both = CompositeLimiter([own, other := rate()])
    with both.acquire("k", 5), both.acquire("j"):
        # It counts the jobs of all keys.
        assert own.running == 2
        denial = both.decide()
        assert (denial.denied_by, denial.retry_after) == ("Jobs", 0.01)
    assert own.running == 0
    both.acquire().cancel()
    assert own.running == 0 and other.peek().remaining == 10
    both.pause(60, "k")
    assert 50 < both.decide().retry_after <= 60
    assert both.get_next_available_time() - datetime.now(timezone.utc) > timedelta(seconds=50)
    both.record_job_start()
    assert own.running == 1
    both.record_job_completion()
    assert own.running == 0
    both.clear()
    assert both.can_proceed()


def test_the_six_methods_with_keys():
    """A limiter of the library is also a JobLimiter, by its six methods."""
    clock = ManualClock()
    inner = RateLimiter(Store("memory:", clock=clock), "inner", max_executions=1, window_size_in_seconds=60)

    class Six:
        name = "six"

        def __getattr__(self, method):
            if method not in ("try_acquire", "retry_after", "complete", "cancel"):
                return getattr(inner, method)
            raise AttributeError(method)

    both = CompositeLimiter([Six()])
    with both.acquire("a"), both.acquire("b"), both.acquire():
        assert [both.decide(key).denied_by for key in ("a", "b", None)] == ["six"] * 3
        assert 50 < both.decide("a").retry_after < 61  # by the wall clock
        both.clear("a")
        assert both.can_proceed("a") and not both.can_proceed("b")


def calls_of(limiter):
    """Returns every call that decides."""
    return [
        limiter.try_acquire, limiter.decide, limiter.peek, limiter.acquire, limiter.can_proceed,
        limiter.get_next_available_time, lambda: asyncio.run(limiter.acquire_async()),
    ]  # fmt: skip


class Trouble(Exception):
    pass


@pytest.mark.parametrize("method", ["retry_after", "try_acquire"])
def test_its_exceptions_reach_the_caller_unchanged(method):
    own, other = AtOnce(1), rate()
    both = CompositeLimiter([other, own])
    for error in Trouble("no"), KeyboardInterrupt(), LimitError("mine"):
        own.raises = {method: error}
        looks = {both.peek, both.can_proceed, both.get_next_available_time} if method == "try_acquire" else set()
        for call in calls_of(both):
            if call not in looks:
                with pytest.raises(type(error)) as caught:
                    call()
                assert caught.value is error
    own.raises = {}
    # No child was charged.
    assert other.peek().remaining == 10 and own.running[None] == 0
    with both.acquire():
        assert other.peek().remaining == 9


@pytest.mark.parametrize("method", ["complete", "cancel", "settle"])
def test_exceptions_of_complete_and_cancel(method):
    own, other = Whole(1), ConcurrencyLimiter(1)
    own.raises = {method: Trouble(method)}
    both = CompositeLimiter([own, other])
    permit = both.acquire()
    with pytest.raises(Trouble, match=method):
        getattr(permit, method)(*[1] * (method == "settle"))
    # The other children's starts have ended nevertheless.
    assert other.can_proceed()
    permit.complete()


def test_of_several_errors_the_first_is_raised():
    first, second = AtOnce(1), AtOnce(1)
    first.raises, second.raises = {"complete": Trouble("first")}, {"complete": Trouble("second")}
    permit = CompositeLimiter([first, second]).acquire()
    with pytest.raises(Trouble, match="first"):
        permit.complete()
    # The other exception is not raised elsewhere.
    third = AtOnce(1)
    third.raises = {"retry_after": Trouble("second")}
    with pytest.raises(Trouble) as caught:
        CompositeLimiter([third]).peek()
    assert caught.value is third.raises["retry_after"]


def test_a_dropped_permit_is_completed():
    own = AtOnce(1)
    both = CompositeLimiter([own])
    with pytest.warns(ResourceWarning, match='a permit of "composite" was dropped before it ended'):
        both.acquire()
    assert own.calls[-1] == ("complete", (None, 1)) and both.can_proceed()


def test_exceptions_without_a_caller_are_reported(monkeypatch):
    own = AtOnce(1)
    own.raises = {"complete": Trouble("forgotten")}
    both, reported = CompositeLimiter([own]), []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))
    with pytest.warns(ResourceWarning):
        try:
            both.acquire()
            raise KeyError
        except KeyError:
            pass
    assert reported == [own.raises["complete"]]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (-1, InvalidArgument, "^retry_after is -1: expected seconds, from 0 to "),
        (float("nan"), InvalidArgument, "^retry_after is nan: "),
        (float("inf"), InvalidArgument, "^retry_after is inf: "),
        (None, TypeError, "^retry_after is None: expected seconds as a number, or a timedelta, not NoneType$"),
        (True, TypeError, "^retry_after is True: "),
        ("1", TypeError, "^retry_after is '1': "),
    ],
)
def test_invalid_answers(answer, error, text):
    own = AtOnce(1)
    own.retry_after = lambda key, weight: answer
    both = CompositeLimiter([own])
    for call in calls_of(both):
        with pytest.raises(error, match=text):
            call()


def without(*names):
    """A limiter that lacks some methods."""
    return type("Less", (AtOnce,), dict.fromkeys(names))(1)


@pytest.mark.parametrize(
    ("bad", "missing"),
    [
        (5, "it has no try_acquire, retry_after, complete, cancel"),
        (without("cancel"), "it has no cancel"),
        (without("retry_after", "complete"), "it has no retry_after, complete"),
        (type("Less", (Jobs,), {"clear": None})(1), "it has no clear"),
        (
            type("Less", (Jobs,), {"can_proceed": 5, "record_job_start": None})(1),
            "it has no can_proceed, record_job_start",
        ),
        (AtOnce, "it is a class, not an instance"),
        (Store("memory:"), "it has no try_acquire, retry_after, complete, cancel"),
    ],
)
def test_objects_that_are_not_limiters(bad, missing):
    for parameter, call in (
        ("limiters", lambda: CompositeLimiter([bad])),
        ("limiter", lambda: CompositeLimiter([]).add(bad)),
    ):
        with pytest.raises(TypeError, match=f"^{parameter} is .*: expected a limiter, not .*: {missing}$"):
            call()


def test_coroutine_methods_are_refused():
    class Later(Jobs):
        async def can_proceed(self):
            return True

    class Settles(AtOnce):
        async def settle(self, token, actual): ...

    for bad, method in (Later(1), "can_proceed"), (Settles(1), "settle"):
        with pytest.raises(TypeError, match=f"{method} is a coroutine function, and is called without await$"):
            CompositeLimiter([bad])


def test_a_child_that_is_added_later():
    both = CompositeLimiter([])
    before = both.acquire()
    both.add(own := AtOnce(1))
    before.complete()
    assert own.calls == []
    with both.acquire():
        assert not both.can_proceed()
    assert own.running[None] == 0


@pytest.mark.parametrize("make", [lambda: AtOnce(3), lambda: Jobs(3)])
def test_many_waiting_threads(make):
    """The core calls it without the GIL. With two locks in the wrong order this would deadlock."""
    own, most, seen = make(), 3, []
    both = CompositeLimiter([ConcurrencyLimiter(5), own, rate(4096)])
    running = []

    def work():
        for _ in range(20):
            with both.acquire(timeout=60):
                running.append(1)
                seen.append(len(running))
                running.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160 and max(seen) <= most
    left = own.running
    assert left == 0 or left == {None: 0}


def test_waiting_in_an_event_loop():
    own = AtOnce(1)
    both = CompositeLimiter([own])

    async def job():
        with await both.acquire_async(timeout=60):
            await asyncio.sleep(0)
            return own.running[None]

    async def all_jobs():
        return await asyncio.gather(*(job() for _ in range(20)))

    assert asyncio.run(all_jobs()) == [1] * 20
    with both.acquire():
        with pytest.raises(AcquireTimeout):
            asyncio.run(both.acquire_async(timeout=0.01))
        with pytest.raises(AcquireTimeout):
            both.acquire(timeout=0.01)


def test_a_forked_child_continues_with_its_own_copy():
    said = run("""
import os
from workglow_limit import CompositeLimiter
class One:
    taken = 0
    def retry_after(self, key, weight): return 1.0 if self.taken else 0.0
    def try_acquire(self, key, weight):
        if self.taken: return None
        self.taken = 1
        return "token"
    def complete(self, token): self.taken = 0
    cancel = complete
own = One()
both = CompositeLimiter([own])
permit = both.acquire()
child = os.fork()
if child == 0:
    permit.complete()  # It is the parent's.
    first = own.taken
    own.taken = 0
    mine = both.acquire()
    second = own.taken
    mine.complete()
    os._exit(int((first, second, own.taken) != (1, 1, 0)))
assert os.waitpid(child, 0)[1] == 0
assert own.taken == 1
permit.complete()
print(own.taken)
""")
    assert said == "0\n"
