import asyncio
import time

import work
from arq import Retry, create_pool
from arq.connections import RedisSettings

if work.WHO == "ours":
    from workglow_limit.arq import limited

    @limited(work.limiter(), key=work.key, grace=0.15, on_limited=lambda ctx, why: work.limited(ctx["job_id"], why))
    async def job(ctx, name):
        work.started(name, ctx["job_try"] - 1)
        await asyncio.to_thread(work.until_told, name)

else:
    LIMITER, ITEM = work.moving_window(asynchronous=True)

    async def job(ctx, name):
        a = time.monotonic_ns()
        if not await LIMITER.hit(ITEM):
            work.note("limited")
            stats = await LIMITER.get_window_stats(ITEM)
            raise Retry(defer=max(0.05, stats.reset_time - time.time()))
        work.started(name, ctx["job_try"] - 1, a)
        await asyncio.to_thread(work.until_told, name)


async def free(ctx, name):
    work.started(name, ctx["job_try"] - 1)
    await asyncio.to_thread(work.until_told, name)


class WorkerSettings:
    functions = [job, free]
    redis_settings = RedisSettings.from_dsn(work.BROKER)
    poll_delay = 0.1
    max_tries = 5 if work.WHO == "ours" else 1000
    log_results = False


async def send():
    pool = await create_pool(WorkerSettings.redis_settings)
    wanted = work.wanted()
    while (line := await asyncio.to_thread(next, wanted, None)) is not None:
        await pool.enqueue_job(*line)
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(send())
