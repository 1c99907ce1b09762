"""arq's own worker, on Redis."""

import asyncio

import pytest
from arq import Retry
from arq.connections import RedisSettings, create_pool
from arq.jobs import Job
from arq.worker import Worker, func
from workglow_limit import Store
from workglow_limit.arq import PREFIX, current_permit, limited

# arq uses a deprecated call of redis.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:redis.*", "ignore::DeprecationWarning:arq.*")


@pytest.fixture
def settings(server):
    number = int(server.url.partition("db=")[2])
    return RedisSettings(unix_socket_path=str(server.socket), database=number)


def work(settings, functions, *jobs, **options):
    """Runs jobs to their end in a worker of this process, and returns `of(job)` for each."""

    async def main():
        pool = await create_pool(settings)
        sent = [await pool.enqueue_job(*job) for job in jobs]
        worker = Worker(functions, redis_pool=pool, burst=True, poll_delay=0.05, handle_signals=False, **options)
        await asyncio.wait_for(worker.async_run(), 60)
        infos = [await Job(job.job_id, pool).result_info() for job in sent]
        kept = await pool.keys(f"{PREFIX}*")
        await pool.aclose()
        return infos, kept

    return asyncio.run(main())


def test_a_deferred_job_is_in_its_first_try(settings):
    away, ran = [], []

    @limited(
        Store("memory:").limiter("l", "1/3s"),
        key="tenant",
        on_limited=lambda ctx, why: away.append((ctx["job_id"], why)),
    )
    async def ask(ctx, tenant):
        ran.append(ctx["job_id"])
        assert current_permit() is not None
        return ctx["job_try"]

    infos, kept = work(settings, [func(ask, name="ask", max_tries=1)], ("ask", "acme"), ("ask", "acme"))
    assert [(info.success, info.result, info.job_try) for info in infos] == [(True, 1, 1), (True, 1, 1)]
    assert away[0][0] == ran[1] and away[0][1].key == "acme" and away[0][1].has_place
    assert kept == []


def test_retries_of_the_function_count(settings):
    tries = []

    @limited(Store("memory:").limiter("l", "100/1s"))
    async def ask(ctx):
        tries.append(ctx["job_try"])
        if len(tries) < 3:
            raise Retry
        return len(tries)

    (info,), _ = work(settings, [func(ask, name="ask")], ("ask",))
    assert info.success and tries == [1, 2, 3]


def test_an_invalid_job_fails(settings):
    ran = []

    @limited(Store("memory:").limiter("l", "1/1h"), weight="units")
    async def ask(ctx, units):
        ran.append(units)

    (info,), _ = work(settings, [func(ask, name="ask")], ("ask", 0))
    assert not info.success and "weight is 0" in str(info.result) and ran == []
