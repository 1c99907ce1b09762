"""taskiq's own receiver, on Redis and in memory."""

import asyncio
from typing import Annotated

import pytest
from taskiq import Context, InMemoryBroker, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend
from workglow_limit import Store
from workglow_limit.taskiq import LABEL, Limits, current_permit, limited


def redis_url(server):
    return server.url.removeprefix("redis+")


def run(broker, main):
    """Returns the result of main() while the broker's tasks are received in the same loop."""

    async def both():
        broker.is_worker_process = True
        await broker.startup()
        receiver = asyncio.create_task(run_receiver_task(broker))
        try:
            return await asyncio.wait_for(main(), 150)
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)
            await broker.shutdown()

    return asyncio.run(both())


@pytest.fixture
def broker(server):
    url = redis_url(server)
    return ListQueueBroker(url).with_result_backend(RedisAsyncResultBackend(url)).with_middlewares(Limits())


def test_a_task_that_left_is_unchanged_and_has_its_result_after_the_run(broker):
    limiter = Store("memory:").limiter("l", "1/3s")
    away, ran = [], []

    @broker.task(count=7, share=0.5, is_new=True, raw=b"ab")
    @limited(
        limiter, key=lambda tenant, context: tenant, on_limited=lambda message, why: away.append((message.task_id, why))
    )
    async def ask(tenant: str, context: Annotated[Context, TaskiqDepends()]) -> int:
        labels = dict(context.message.labels)
        ran.append((context.message.task_id, labels))
        assert LABEL not in labels and current_permit() is not None
        return len(ran)

    async def main():
        sent = [await ask.kiq("acme"), await ask.kiq("acme")]
        results = [await task.wait_result(timeout=120) for task in sent]
        return [task.task_id for task in sent], results

    ids, results = run(broker, main)
    assert [result.is_err for result in results] == [False, False]
    assert sorted(result.return_value for result in results) == [1, 2]
    assert sorted(task for task, _ in ran) == sorted(ids)
    assert away[0][0] == ran[1][0] and away[0][1].key == "acme" and away[0][1].has_place
    assert ran[0][1] == ran[1][1] == {"count": 7, "share": 0.5, "is_new": True, "raw": b"ab"}


def test_synchronous_tasks(broker):
    limiter = Store("memory:").limiter("l", "1 concurrent")

    @broker.task
    @limited(limiter)
    def ask() -> bool:
        return current_permit() is not None and limiter.try_acquire() is None

    async def main():
        sent = [await ask.kiq() for _ in range(3)]
        return [(await task.wait_result(timeout=120)).return_value for task in sent]

    assert run(broker, main) == [True, True, True]


def test_an_invalid_task_fails(broker):
    ran = []

    @broker.task
    @limited(Store("memory:").limiter("l", "1/1h"), weight="units")
    async def ask(units: int) -> None:
        ran.append(units)

    async def main():
        return await (await ask.kiq(0)).wait_result(timeout=120)

    result = run(broker, main)
    assert result.is_err and "weight is 0" in str(result.error)
    assert ran == []


def test_in_memory_tasks_wait():
    broker = InMemoryBroker(await_inplace=True).with_middlewares(Limits())
    limiter = Store("memory:").limiter("l", "1/1s")
    ran = []

    @broker.task
    @limited(limiter)
    async def ask() -> None:
        ran.append(limiter.peek().remaining)

    async def main():
        for _ in range(2):
            await ask.kiq()

    asyncio.run(main())
    assert ran == [0, 0]
