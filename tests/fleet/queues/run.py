"""The course of a backlog under a limit in Dramatiq, RQ, arq and taskiq: ours compared with the usual limiters there.

    target/venv/bin/python tests/fleet/queues/run.py [--queue dramatiq|rq|arq|taskiq] [--broker redis|rabbitmq]
        [--who ours|others] [--out DIR]

Two worker processes get 160 short jobs on 20 starts per 2 s. While these wait, a job without a limit is sent to the
same queue every 250 ms. The exit code is 1 if ours breaks a promise.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fleet import COMMANDS, HAS_RABBITMQ, ROOT, fleet
from evidence import SECOND, most_in_any_window

LIMIT, WINDOW = 20, 2  # starts per seconds
JOBS = 160
FREE_EVERY = 0.25  # seconds between two jobs without a limit
PATIENCE = 120  # seconds after which a job that has not started counts as lost

OTHERS = {
    "dramatiq": "its WindowRateLimiter, retried",
    "rq": "`limits` in the job, `Retry`",
    "arq": "`limits` in the job, `Retry`",
    "taskiq": "`limits` in the task, waited for",
}


@dataclass
class Result:
    queue: str
    who: str
    broker: str
    over: int  # the most starts that surely lie in one window, above the limit
    span: float  # s from the first start to the last
    ideal: float  # the same for the limit at once and again after every window
    away: float  # how often a job was sent away: the mean
    attempts: int  # the most retries that were counted for a start
    overtaken: int  # the most later jobs that overtook a job, beyond those that may start together
    waited: float  # s from sending a job without a limit to its start: worst, median
    waited_median: float
    free: int  # the number of those that were sent
    late: int  # the number of those that started only after the backlog was done
    lost: int  # jobs that never started
    twice: int  # jobs that started more than once

    def broken(self):
        """Returns the promises that it broke. None depends on the speed of the machine."""
        wrong = {
            f"{self.over} over the limit": self.over > 0,
            f"{self.attempts} attempts": self.attempts > 0,
            f"{self.lost} lost": self.lost > 0,
            f"{self.twice} twice": self.twice > 0,
            f"{self.late} of {self.free} jobs without a limit came after the backlog": self.late > 0,
        }
        return [what for what, is_so in wrong.items() if is_so]


def measure(queue, who, broker, out, count=JOBS, limit=LIMIT, window=WINDOW, plant=False, patience=PATIENCE):
    jobs = [f"job-{number}" for number in range(count)]
    sent = {}
    with fleet(out / f"{queue}-{who}-{broker}", queue, who, broker, limit=limit, window=window, plant=plant) as workers:

        def send_free():
            # Not during the last windows, where milliseconds would decide whether it starts before the last jobs.
            due = not sent or time.monotonic_ns() - max(sent.values()) >= FREE_EVERY * SECOND
            log = workers.log()
            if due and sum(job in log.starts for job in jobs) < count - 2 * limit:
                free = f"free-{len(sent)}"
                sent[free] = time.monotonic_ns()
                workers.send("free", free)

        for job in jobs:
            workers.send("job", job)
        workers.wait(lambda log: log.ended >= {*jobs, *sent}, patience, send_free)
        time.sleep(0.5)  # for messages that may be delivered twice
        log = workers.log()
        if not any(job in log.starts for job in jobs):
            raise SystemExit(f"{who} on {queue}: no job has started\n{workers.errors()}")
    return judge(queue, who, broker, log, jobs, sent, limit, window)


def judge(queue, who, broker, log, jobs, sent, limit, window):
    first = {job: log.starts[job][0] for job in jobs if job in log.starts}
    starts = [start for job in jobs for start in log.starts.get(job, ())]
    last = max(start.b for start in starts)
    free = {job: log.starts[job][0].b for job in sent if job in log.starts}
    waited = [(b - sent[job]) / SECOND for job, b in free.items()] or [0.0]
    order = [jobs.index(job) for job in sorted(first, key=lambda job: first[job].b)]
    return Result(
        queue=queue,
        who=who,
        broker=broker,
        over=max(0, most_in_any_window([(start.a, start.b) for start in starts], window * SECOND) - limit),
        span=(last - min(start.b for start in starts)) / SECOND,
        ideal=(-(-len(jobs) // limit) - 1) * window,
        away=log.limited / len(jobs),
        attempts=max(start.attempts for start in starts),
        overtaken=max(0, max(sum(later > job for later in order[:at]) for at, job in enumerate(order)) - limit),
        waited=max(waited),
        waited_median=statistics.median(waited),
        free=len(sent),
        late=sum(free.get(job, last) >= last for job in sent),
        lost=sum(job not in log.starts for job in jobs),
        twice=sum(len(log.starts.get(job, ())) > 1 for job in jobs),
    )


HEAD = """| queue | who | over the limit | span, s | of ideal | sent away, mean | attempts, max | overtaken by, max | lost, twice | unlimited: sent to start, worst (median) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def row(result):
    name = result.queue + (f", {result.broker}" if result.queue == "dramatiq" else "")
    who = "**ours**" if result.who == "ours" else OTHERS[result.queue]
    over = f"**{result.over}**" if result.who == "ours" else result.over
    cells = [
        name,
        who,
        over,
        f"{result.span:.1f}",
        f"{result.span / result.ideal:.2f}",
        f"{result.away:.2f}",
        result.attempts,
    ]
    cells += [result.overtaken, f"{result.lost}, {result.twice}", f"{result.waited:.2f} s ({result.waited_median:.2f})"]
    return f"| {' | '.join(map(str, cells))} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--queue", choices=COMMANDS, action="append")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), action="append")
    parser.add_argument("--who", choices=("ours", "others"), action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "target/fleet/queues")
    chosen = parser.parse_args()
    print(HEAD, flush=True)
    wrong = []
    for queue in chosen.queue or COMMANDS:
        for broker in ("redis", "rabbitmq"):
            can = broker == "redis" or (queue == "dramatiq" and HAS_RABBITMQ)
            for who in (chosen.who or ("ours", "others")) if can and broker in (chosen.broker or (broker,)) else ():
                result = measure(queue, who, broker, chosen.out)
                print(row(result), flush=True)
                if who == "ours":
                    wrong += [f"{queue}: {what}" for what in result.broken()]
    for what in wrong:
        print(f"\nours broke its promise: {what}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
