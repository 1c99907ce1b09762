import asyncio
import time

import work
from taskiq import Context, TaskiqDepends
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(work.BROKER)


def attempts(context):
    return int(context.message.labels.get("_retries", 0))


if work.WHO == "ours":
    from workglow_limit.taskiq import Limits, limited

    broker.add_middlewares(Limits())

    @broker.task
    @limited(work.limiter(), key=work.key, on_limited=lambda sent, why: work.limited(sent.args[0], why))
    async def job(name: str, context: Context = TaskiqDepends()) -> None:
        work.started(name, attempts(context))
        await asyncio.to_thread(work.until_told, name)

else:
    LIMITER, ITEM = work.moving_window(asynchronous=True)

    @broker.task
    async def job(name: str, context: Context = TaskiqDepends()) -> None:
        while True:
            a = time.monotonic_ns()
            if await LIMITER.hit(ITEM):
                break
            work.note("limited")
            stats = await LIMITER.get_window_stats(ITEM)
            await asyncio.sleep(max(0.05, stats.reset_time - time.time()))
        work.started(name, attempts(context), a)
        await asyncio.to_thread(work.until_told, name)


@broker.task
async def free(name: str, context: Context = TaskiqDepends()) -> None:
    work.started(name, attempts(context))
    await asyncio.to_thread(work.until_told, name)


async def send():
    await broker.startup()
    wanted = work.wanted()
    while (line := await asyncio.to_thread(next, wanted, None)) is not None:
        await globals()[line[0]].kiq(line[1])
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send())
