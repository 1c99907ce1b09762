import math
import time

import rq
import work
from redis import Redis


def attempts():
    return rq.get_current_job().number_of_retries or 0


if work.WHO == "ours":
    from workglow_limit.rq import limited

    @limited(work.limiter(), key=work.key, on_limited=lambda sent, why: work.limited(sent.args[0], why))
    def job(name):
        work.started(name, attempts())
        work.until_told(name)

else:

    def job(name):
        limiter, item = work.moving_window()
        a = time.monotonic_ns()
        if not limiter.hit(item):
            work.note("limited")
            wait = limiter.get_window_stats(item).reset_time - time.time()
            return rq.Retry(max=1000, interval=max(1, math.ceil(wait)))
        work.started(name, attempts(), a)
        work.until_told(name)


def free(name):
    work.started(name, attempts())
    work.until_told(name)


if __name__ == "__main__":
    queue = rq.Queue("fleet", connection=Redis.from_url(work.BROKER))
    for kind, name in work.wanted():
        queue.enqueue(f"rq_jobs.{kind}", name)
