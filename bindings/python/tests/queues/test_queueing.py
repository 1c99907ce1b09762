"""The code that all queues share: starts, and jobs that are sent away with a ticket."""

import asyncio
from datetime import timedelta

import pytest
from conftest import lane_held
from workglow_limit import InvalidArgument, ManualClock, Permit, Store, StoreError, arq, dramatiq, rq, taskiq
from workglow_limit._queueing import Later, current_permit, gate_of

MODULES = [dramatiq, rq, taskiq]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store("memory:", clock=clock)


def gate(limiter, **options):
    """Returns the gate of a function, by default with a hold of 0."""

    def ask(tenant, units=1):
        pass

    return gate_of(dramatiq.limited(limiter, **{"hold": 0, "grace": 0.1} | options)(ask))


def call(tenant="acme", units=1):
    return (tenant,), {"units": units}


# ---- options ----


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"key": "tennant"}, InvalidArgument, "key is 'tennant': expected an argument of the function: tenant, units"),
        ({"key": ""}, InvalidArgument, "key is ''"),
        ({"key": "{tenant}:{model}"}, InvalidArgument, "key is '{tenant}:{model}'"),
        ({"weight": 0}, InvalidArgument, "weight is 0: expected a whole number of at least 1"),
        ({"weight": True}, InvalidArgument, "weight is True"),
        ({"key": {"tenant": "tennant"}}, InvalidArgument, r"key['tenant'] is 'tennant': expected an argument"),
        ({"weight": {"tokens": 0}}, InvalidArgument, "weight['tokens'] is 0: expected a whole number of at least 1"),
        ({"weight": {5: 1}}, TypeError, "weight is 5: expected the name of a part as a str, not int"),
        ({"hold": -1}, InvalidArgument, "hold is -1: expected 0 s to 1 day"),
        ({"hold": float("nan")}, InvalidArgument, "hold is nan"),
        ({"hold": "1s"}, TypeError, "hold is '1s': expected seconds"),
        ({"hold": None}, TypeError, "hold is None"),
        ({"grace": True}, TypeError, "grace is True: expected seconds"),
        ({"grace": timedelta(days=2)}, InvalidArgument, "grace is"),
        ({"on_limited": 5}, TypeError, "on_limited is 5: expected a function, not int"),
    ],
)
def test_invalid_arguments_raise_at_once(module, store, options, error, words):
    with pytest.raises(error) as raised:

        @module.limited(store.limiter("l", "1/1s"), **options)
        def ask(tenant, units):
            pass

    assert words in str(raised.value)


@pytest.mark.parametrize("module", [*MODULES, arq])
@pytest.mark.parametrize("limiter", [None, "openai", 5])
def test_limiter_must_be_a_limiter(module, limiter):
    async def ask(ctx):
        pass

    with pytest.raises(TypeError, match="limiter is .*: expected a limiter of workglow_limit"):
        module.limited(limiter)(ask)


@pytest.mark.parametrize("module", MODULES)
def test_limited_goes_below_the_queue_s_decorator(module, store):
    def generator():
        yield

    for function in (object(), print, staticmethod(generator)):
        with pytest.raises(TypeError, match="is not a function: put @limited below"):
            module.limited(store.limiter("l", "1/1s"))(function)
    with pytest.raises(TypeError, match="generator function"):
        module.limited(store.limiter("l", "1/1s"))(generator)


def test_arq_accepts_coroutine_functions_only(store):
    with pytest.raises(TypeError, match="is not a coroutine function"):
        arq.limited(store.limiter("l", "1/1s"))(lambda ctx: None)


# ---- calls outside of jobs ----


def test_a_call_completes_its_permit_also_after_an_error(store):
    limiter = store.limiter("l", "10/1s + 1 concurrent")

    @rq.limited(limiter, key="tenant", weight="units")
    def ask(tenant, units):
        assert current_permit() is rq.current_permit() is not None
        assert limiter.try_acquire(tenant) is None
        if units > 1:
            raise ValueError
        return tenant

    assert ask("acme", 1) == "acme" and current_permit() is None
    rate = store.limiter("l/rate", None)
    assert rate.peek("acme").remaining == 9 and rate.peek("other").remaining == 10
    limiter = store.limiter("l2", "10/1s")

    @rq.limited(limiter, weight="units")
    def fail(units):
        current_permit().settle(units - 1)
        raise ValueError

    with pytest.raises(ValueError):
        fail(4)
    assert limiter.peek().remaining == 7


def test_an_asynchronous_call_completes_its_permit(store):
    limiter = store.limiter("l", "1 concurrent")

    @taskiq.limited(limiter)
    async def ask():
        await asyncio.sleep(0)
        return limiter.try_acquire(), current_permit()

    (other, permit) = asyncio.run(ask())
    assert other is None and isinstance(permit, Permit)
    with limiter.try_acquire() as permit:
        assert permit is not None


# ---- jobs ----


def test_a_place_travels_and_starts_once(store, clock):
    mine = gate(store.limiter("l", "2/10s"), key="tenant")
    assert all(isinstance(mine.admit(call(), None), Permit) for _ in range(2))
    assert isinstance(mine.admit(call("other"), None), Permit)
    later = mine.admit(call(), None)
    assert isinstance(later, Later) and later.limited.has_place and later.limited.key == "acme"
    early = mine.admit(call(), later.ticket)
    assert isinstance(early, Later) and early.limited.has_place
    clock.advance(10.05)
    assert isinstance(mine.admit(call(), early.ticket), Permit)
    again = mine.admit(call(), early.ticket)
    assert not isinstance(again, Permit) or store.limiter("l").peek("acme").remaining == 0


def test_late_and_invalidated_places_do_not_exceed_the_limit(store, clock):
    limiter = store.limiter("l", "2/10s")
    mine = gate(limiter)
    admitted = [mine.admit(call(), None) for _ in range(4)]
    tickets = [later.ticket for later in admitted[2:]]
    limiter.pause(30)
    clock.advance(10.05)
    answers = [mine.admit(call(), ticket) for ticket in tickets]
    assert all(isinstance(answer, Later) for answer in answers)
    clock.advance(20)
    for _ in range(3):
        answers = [answer if isinstance(answer, Permit) else mine.admit(call(), answer.ticket) for answer in answers]
        clock.advance(10)
    assert all(isinstance(answer, Permit) for answer in answers)


@pytest.mark.parametrize(
    "ticket", ["", "x", "1.0", "1.0 x y", "1.0 0 junk", "1.0 0 wgl1.0.0.0.0.0.0.0", "nan 0 a", "9" * 400]
)
def test_foreign_data_are_not_a_ticket(store, ticket):
    limiter = store.limiter("l", "1/10s")
    mine = gate(limiter)
    mine.return_place(ticket)
    assert isinstance(mine.admit(call(), ticket), Permit)
    assert isinstance(mine.admit(call(), ticket), Later)
    assert limiter.peek().remaining == 0


def test_a_ticket_of_another_store_is_decided_again(store):
    other = gate(Store("memory:").limiter("l", "1/10s"))
    other.admit(call(), None)
    ticket = other.admit(call(), None).ticket
    assert isinstance(gate(store.limiter("l", "1/10s")).admit(call(), ticket), Permit)


def test_a_returned_place_goes_to_the_next_job(store):
    mine = gate(store.limiter("l", "1/10s"))
    mine.admit(call(), None)
    first = mine.admit(call(), None)
    mine.return_place(first.ticket)
    second = mine.admit(call(), None)
    assert second.limited.has_place and second.limited.wait == pytest.approx(first.limited.wait, abs=1)


def test_jobs_without_a_place_return_in_turn_before_new_jobs(store, clock):
    limiter = store.limiter("l", "5/10s")
    mine = gate(limiter, key="tenant")
    answers = [mine.admit(call(), None) for _ in range(30)]
    assert [isinstance(answer, Permit) for answer in answers] == 5 * [True] + 25 * [False]
    assert [answer.limited.has_place for answer in answers[5:]] == 5 * [True] + 20 * [False]
    delays = [answer.delay for answer in answers[10:]]
    assert delays == sorted(delays) and len({round(delay, 3) for delay in delays}) == 20
    assert isinstance(mine.admit(call("other"), None), Permit)
    # Windows pass, and places are free for new jobs, but they come after all waiting jobs.
    limiter.clear("acme")
    for _ in range(5):
        assert isinstance(mine.admit(call(), None), Permit)
    newcomer = mine.admit(call(), None)
    assert not newcomer.limited.has_place and newcomer.delay > delays[-1]
    # A job that returns gets a place.
    assert mine.admit(call(), answers[10].ticket).limited.has_place


def test_a_concurrency_limit_gives_no_places(store):
    mine = gate(store.limiter("l", "1 concurrent"))
    permit = mine.admit(call(), None)
    later = mine.admit(call(), None)
    assert not later.limited.has_place and 0 < later.delay < 10
    later = mine.admit(call(), later.ticket)
    assert isinstance(later, Later)
    permit.complete()
    with mine.admit(call(), later.ticket) as permit:
        assert isinstance(permit, Permit)


def test_a_job_that_waits_for_a_slot_blocks_no_start(store):
    limiter = store.limiter("l", "10/10s + 1 concurrent")
    mine = gate(limiter)
    permit = mine.admit(call(), None)
    later = mine.admit(call(), None)
    assert isinstance(later, Later) and not later.limited.has_place
    assert store.limiter("l/rate").peek().remaining == 9
    permit.complete()
    with mine.admit(call(), later.ticket) as permit:
        assert isinstance(permit, Permit)


def test_weights(store):
    limiter = store.limiter("l", "10/10s")
    mine = gate(limiter, weight="units")
    assert isinstance(mine.admit(call(units=7), None), Permit)
    assert isinstance(mine.admit(call(units=7), None), Later)
    for units in (0, 1.5, "7", True):
        with pytest.raises(InvalidArgument, match="weight is"):
            mine.admit(call(units=units), None)


def test_parts_have_keys_and_weights_of_their_own(store, clock):
    limiter = store.limiter("l", "requests: 9/10s + tokens: 10/10s + tenant: 2/10s")
    mine = gate(limiter, key={"tenant": "tenant"}, weight={"tokens": "units"})
    whole = gate(limiter, key=lambda tenant, units: {"tenant": tenant}, weight=lambda tenant, units: {"tokens": units})
    assert isinstance(mine.admit(call(units=7), None), Permit)
    later = mine.admit(call("other", units=7), None)
    assert isinstance(later, Later) and later.limited == ({"tenant": "other"}, pytest.approx(10, abs=1), True)
    clock.advance(10.05)
    assert isinstance(mine.admit(call("other", units=7), later.ticket), Permit)
    assert store.limiter("l/tokens").peek().remaining == 3
    assert isinstance(whole.admit(call(units=1), None), Permit)
    full = whole.admit(call(units=4), None)
    assert isinstance(full, Later) and full.limited.key == {"tenant": "acme"}
    for units in (0, "7"):
        with pytest.raises(InvalidArgument, match=r"weight\['tokens'\] is"):
            mine.admit(call(units=units), None)


def test_jobs_of_parts_without_a_place_return_in_turn(store):
    limiter = store.limiter("l", "slots: 1 concurrent + tokens: 100/10s")
    mine = gate(limiter, key={"tokens": "tenant"}, weight={"tokens": "units"})
    answers = [mine.admit(call(units=5), None) for _ in range(3)]
    assert [isinstance(answer, Permit) for answer in answers] == [True, False, False]
    assert not answers[1].limited.has_place and answers[2].delay >= answers[1].delay > 0
    answers[0].complete()
    start = mine.admit(call(units=5), answers[1].ticket)
    assert isinstance(start, Permit)
    start.complete()


def test_an_exception_of_on_limited_is_logged(store, caplog):
    mine = gate(store.limiter("l", "1/10s"), on_limited=lambda job, limited: 1 / 0)
    mine.admit(call(), None)
    mine.notify("job", mine.admit(call(), None))
    assert "on_limited raised" in caplog.text


def test_a_failing_store_is_an_error(tmp_path):
    mine = gate(Store(f"sqlite:{tmp_path}/gone/limits.db").limiter("l", "1/10s"))
    with pytest.raises(StoreError):
        mine.admit(call(), None)
    with pytest.raises(StoreError):
        asyncio.run(mine.admit_async(call(), None))


def test_a_locked_store_does_not_block_the_loop(tmp_path):
    Store(f"sqlite:{tmp_path}/limits.db").open()
    mine = gate(Store(f"sqlite:{tmp_path}/limits.db", timeout=100).limiter("l", "1/10s"))

    async def main():
        with lane_held(tmp_path / "limits.db"):
            asked = asyncio.create_task(mine.admit_async(call(), None))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not asked.done()
        return await asked

    assert isinstance(asyncio.run(main()), Permit)


def test_a_held_job_that_is_cancelled_returns_its_place():
    limiter = Store("memory:").limiter("l", "1/1h")
    mine = gate(limiter, hold=86_400)
    limiter.acquire()
    before = limiter.peek().reset_after

    async def main():
        held = asyncio.create_task(mine.admit_async(call(), None))
        while limiter.peek().reset_after < before + 1:
            await asyncio.sleep(0.005)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        while limiter.peek().reset_after > before + 1:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 120))
