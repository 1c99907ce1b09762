"""A worker is killed with SIGKILL while it holds slots and places. The others do all of its work.

Three workers share "20 starts per 2 s and 5 at the same time". Tasks are acknowledged late, so that the broker
redelivers the dead worker's messages. No unit of the limit may be lost for ever, and no start may exceed the limit.
"""

import signal
import time
from dataclasses import dataclass

from fleet import Fleet, broker
from evidence import SECOND, most_in_any_window
from workglow_limit import Store

LIMIT, WINDOW, AT_ONCE = 20, 2, 5
JOBS = 60
WORKERS, CHILDREN = 3, 3
JOB_SECONDS = 0.3
HOLD = 5  # the longest time that a worker holds a task, in seconds
VISIBILITY = 12  # seconds after which Redis redelivers unacknowledged messages, longer than the hold
PATIENCE = 60


@dataclass
class Survival:
    over: int  # the most starts that surely lie in one window, above the limit
    at_once: int  # the most jobs that surely ran at the same time
    cut_off: int  # jobs that were running in the worker when it was killed
    held: int  # jobs that the worker had received and not started
    lost: int  # jobs that did not run to their end
    strangers: int  # jobs started twice although the killed worker never had them
    attempts: int  # the largest `request.retries`
    back: float | None  # s from the kill until `AT_ONCE` jobs surely ran at the same time, without the killed ones
    done: float  # s from the kill to the last end
    left: int  # units of the window that are free in the end, taken by starts of which 5 ran at the same time


def environment(broker_url, store):
    return {
        "FLEET_WHO": "ours",
        "FLEET_HOLD": str(HOLD),
        "FLEET_LIMIT": str(LIMIT),
        "FLEET_WINDOW": str(WINDOW),
        "FLEET_POLICY": f"{LIMIT}/{WINDOW}s + {AT_ONCE} concurrent",
        "FLEET_JOB_SECONDS": str(JOB_SECONDS),
        "FLEET_STORE": store,
        "FLEET_VISIBILITY": str(VISIBILITY),
    }


def had(log, worker, job):
    return any(receipt.worker == worker.name for receipt in log.receipts[job])


def running(log, worker, jobs):
    """Returns the number of jobs that have begun in this worker and not ended."""
    return sum(run.worker == worker.name and run.ended is None for job in jobs for run in log.runs[job])


def waiting(log, worker, jobs):
    """Returns the number of jobs that this worker has received and not started."""
    return sum(had(log, worker, job) and not log.started(job) for job in jobs)


def at_the_same_time(spans):
    """Returns the number of spans [begin, end) that surely overlap, as (time, count), from each time on."""
    count = 0
    for at, step in sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]):
        count += step
        yield at, count


def what_is_left(store):
    """Returns the number of starts that the limit allows in the end, the first of them at the same time."""
    limiter = Store(store).limiter("fleet")
    # Until the window is over, and the grace of places, which is longer where workers were late.
    deadline = time.monotonic() + PATIENCE
    while limiter.parts["rate"].peek().remaining < LIMIT and time.monotonic() < deadline:
        time.sleep(0.02)
    together = [permit for permit in (limiter.try_acquire() for _ in range(AT_ONCE)) if permit]
    for permit in together:
        permit.complete()
    if len(together) < AT_ONCE:
        return len(together)
    left = len(together)
    while left < LIMIT and (permit := limiter.try_acquire()):
        permit.complete()
        left += 1
    return left


def measure(folder, kind="redis", plant=False):
    """One run on this kind of broker. `plant`: each worker has its own limit, which the checks must detect."""
    jobs = [f"job-{number}" for number in range(JOBS)]
    stores = [f"sqlite:{folder}/limits{worker if plant else ''}.db" for worker in range(WORKERS)]
    with (
        broker(kind, folder) as url,
        Fleet(folder, url, [environment(url, store) for store in stores], CHILDREN) as fleet,
    ):
        for job in jobs:
            fleet.send("job", job)
        victim = fleet.workers[0]

        def holds(log):
            """Not among the first jobs: later slots come from other workers."""
            ended = sum(map(log.ended, jobs))
            return ended > AT_ONCE and running(log, victim, jobs) > 0 and waiting(log, victim, jobs) > 0

        while True:
            if not holds(fleet.wait(holds, PATIENCE)):
                raise SystemExit("the first worker never had slots and places at the same time")
            # The slots and places that it holds while stopped are those that it holds when it is killed.
            victim.signal(signal.SIGSTOP)
            before = fleet.log()
            if holds(before):
                break
            victim.signal(signal.SIGCONT)
        killed_at = time.monotonic_ns()
        fleet.kill(victim)
        fleet.wait(lambda log: all(map(log.ended, jobs)), PATIENCE)
        fleet.stop()
        log, left = fleet.log(), what_is_left(stores[-1])
    return judge(log, before, victim, jobs, killed_at, left)


def judge(log, before, victim, jobs, killed_at, left):
    runs = [run for job in jobs for run in log.runs[job]]
    # The interrupted jobs ran at least until just before the kill.
    spans = [(run.b, run.ended or max(run.b, killed_at)) for run in runs]
    after = list(at_the_same_time([span for span in spans if span[0] > killed_at]))
    full = [at for at, count in after if count >= AT_ONCE]
    return Survival(
        over=max(0, most_in_any_window([(run.a, run.b) for run in runs], WINDOW * SECOND) - LIMIT),
        at_once=max(count for _, count in at_the_same_time(spans)),
        cut_off=running(before, victim, jobs),
        held=waiting(before, victim, jobs),
        lost=sum(not log.ended(job) for job in jobs),
        strangers=sum(len(log.runs[job]) > 1 and not had(log, victim, job) for job in jobs),
        attempts=max(run.retries for run in runs),
        back=(min(full) - killed_at) / SECOND if full else None,
        done=(max(run.ended or 0 for run in runs) - killed_at) / SECOND,
        left=left,
    )


def broken(survival):
    """Returns the promises that the run broke."""
    promises = {
        f"{survival.over} over the limit": survival.over == 0,
        f"{survival.at_once} ran at the same time, {AT_ONCE} may": survival.at_once <= AT_ONCE,
        f"{survival.lost} jobs lost": survival.lost == 0,
        f"{survival.strangers} jobs started twice that the dead worker never had": survival.strangers == 0,
        f"attempts went up to {survival.attempts}": survival.attempts == 0,
        f"in the end the limit allows {survival.left} of {LIMIT}": survival.left == LIMIT,
    }
    return [wrong for wrong, kept in promises.items() if not kept]
