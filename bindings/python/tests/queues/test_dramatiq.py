"""Dramatiq's own worker on its in-memory broker."""

import time
from contextlib import contextmanager, suppress

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.middleware.asyncio import AsyncIO
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends.stub import StubBackend
from workglow_limit import Store
from workglow_limit.dramatiq import OPTION, Limits, current_permit, limited


@pytest.fixture
def broker():
    broker = StubBroker()
    broker.add_middleware(Results(backend=StubBackend()))
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(Limits())
    yield broker
    broker.close()


@contextmanager
def working(broker):
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    yield
    worker.stop()


@pytest.fixture
def worker(broker):
    with working(broker):
        yield


def wait(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_delayed_message_is_unchanged_and_has_its_result_after_the_run(broker, worker):
    limiter = Store("memory:").limiter("l", "1/3s")
    away, ran = [], []

    @dramatiq.actor(broker=broker, store_results=True, max_retries=0)
    @limited(limiter, key="tenant", on_limited=lambda message, why: away.append((message.message_id, why)))
    def ask(tenant):
        message = CurrentMessage.get_current_message()
        ran.append((message.message_id, message.options.get("retries"), OPTION in message.options))
        assert current_permit() is not None
        return len(ran)

    first, second = ask.send("acme"), ask.send("acme")
    wait(lambda: away)
    late = {first.message_id: first, second.message_id: second}[away[0][0]]
    with suppress(ResultMissing):  # A message has no result before it runs. It may have run by now.
        assert late.get_result(backend=broker.get_results_backend()) == 2
    assert away[0][1].key == "acme" and away[0][1].has_place
    assert late.get_result(backend=broker.get_results_backend(), block=True, timeout=120_000) == 2
    assert [(retries, carries) for _, retries, carries in ran] == [(None, False), (None, False)]
    assert {ran[0][0], ran[1][0]} == {first.message_id, second.message_id}


def test_actors_without_a_limit_and_asynchronous_actors_run(broker):
    broker.add_middleware(AsyncIO())
    ran = []
    limiter = Store("memory:").limiter("l", "2/1h")

    @dramatiq.actor(broker=broker)
    def free():
        ran.append(current_permit())

    @dramatiq.actor(broker=broker)
    @limited(limiter)
    async def ask():
        ran.append(current_permit())

    with working(broker):
        free.send()
        wait(lambda: ran)
        assert ran == [None]
        ask.send()
        wait(lambda: len(ran) == 2)
    assert ran[1] is not None and limiter.peek().remaining == 1


def test_an_invalid_message_fails(broker, worker):
    ran = []

    @dramatiq.actor(broker=broker, max_retries=0)
    @limited(Store("memory:").limiter("l", "2/1h"), weight="units")
    def ask(units):
        ran.append(units)

    ask.send(3)
    wait(lambda: broker.dead_letters)
    assert ran == []


def test_a_message_that_is_too_old_returns_its_place(broker, worker):
    limiter = Store("memory:").limiter("l", "1/1h")

    @dramatiq.actor(broker=broker, max_age=1)
    @limited(limiter)
    def ask():
        raise AssertionError

    limiter.acquire()
    before = limiter.peek().reset_after
    place = limiter.reserve()
    assert limiter.peek().reset_after > before + 1
    message = ask.message_with_options(**{OPTION: f"{time.time():.3f} 0 {place.to_text()}"})
    broker.enqueue(message.copy(message_timestamp=message.message_timestamp - 60_000))
    wait(lambda: limiter.peek().reset_after < before + 1)
