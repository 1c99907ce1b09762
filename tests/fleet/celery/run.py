"""The course of a backlog under a limit, in one table: ours, Celery's own `rate_limit` and the usual retry recipe.

    target/venv/bin/python tests/fleet/celery/run.py [--broker redis|filesystem|rabbitmq-classic|rabbitmq-quorum] [--who ours|stock|retry] [--out DIR]

Two workers with two prefork children each get 160 short jobs on 20 starts per 2 s. While these wait, a task without a
limit is sent to the same queue every 250 ms. The exit code is 1 if ours breaks a promise.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import killed
from brokers import KINDS
from fleet import ROOT, Fleet, broker
from evidence import SECOND, most_in_any_window

LIMIT, WINDOW = 20, 2  # starts per seconds
JOBS = 160
WORKERS, CHILDREN = 2, 2
JOB_SECONDS = 0.02
FREE_EVERY = 0.25  # seconds between two tasks without a limit
HOLD = 10  # the longest time that a worker of ours holds a task, in seconds; the default
PATIENCE = 60  # seconds after which a job that has not started counts as lost

WHO = {
    "ours": "workglow_limit.celery, hold",
    "stock": "Celery's rate_limit, per worker",
    "retry": "a shared counter and retry",
}


@dataclass
class Result:
    who: str
    broker: str
    over: int  # the most starts that surely lie in one window, above the limit
    span: float  # s from the first start to the last
    ideal: float  # the same for 20 starts at once and 20 more after every window
    republished: int  # how often a job was delivered to a worker again: the maximum and the mean
    republished_mean: float
    attempts: int  # the largest `request.retries` of a start
    held: float  # s from receipt to start of a task without a limit: worst, median
    held_median: float
    waited: float  # s from its sending to its start: worst, median
    waited_median: float
    free: int  # the number of those that were sent
    late: int  # the number of those that started only after the backlog was done
    lost: int  # jobs that never started
    twice: int  # jobs that started more than once
    exits: list[int | None]  # of the workers, after a warm shutdown


def environments(who, broker_url, folder, hold=HOLD, visibility=None, plant=False):
    """The environment of the tasks of each worker."""
    shared = {
        "FLEET_WHO": who,
        "FLEET_HOLD": str(hold),
        "FLEET_VISIBILITY": str(visibility or ""),
        "FLEET_LIMIT": str(LIMIT),
        "FLEET_WINDOW": str(WINDOW),
        "FLEET_POLICY": f"{LIMIT}/{WINDOW}s",
        "FLEET_JOB_SECONDS": str(JOB_SECONDS),
        # With Redis as the broker, users of the recipe count in Redis.
        "FLEET_STORE": broker_url
        if who == "retry" and broker_url.startswith("redis")
        else f"sqlite:{folder}/limits.db",
    }
    if not plant:
        return [shared] * WORKERS
    return [shared | {"FLEET_STORE": f"sqlite:{folder}/limits{worker}.db"} for worker in range(WORKERS)]


def empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def measure(who, kind, out, count=JOBS, plant=False, **options):
    """One run; its evidence remains in `out`. `plant`: each worker has its own limit, which the checks must detect.
    `options`: the seconds that a worker holds a task (`hold`), and that Redis waits for its acknowledgement
    (`visibility`)."""
    folder = empty(out / f"{who}-{kind}")
    jobs = [f"job-{number}" for number in range(count)]
    sent = {}

    def send_free(log):
        # Not during the last window, where milliseconds would decide whether it starts before the last jobs.
        due = not sent or time.monotonic_ns() - max(sent.values()) >= FREE_EVERY * SECOND
        if due and sum(map(log.started, jobs)) < count - LIMIT:
            free = f"free-{len(sent)}"
            sent[free] = time.monotonic_ns()
            fleet.send("free", free)

    def done(log):
        send_free(log)
        return all(map(log.ended, jobs)) and all(map(log.started, sent))

    with (
        broker(kind, folder) as url,
        Fleet(folder, url, environments(who, url, folder, plant=plant, **options), CHILDREN) as fleet,
    ):
        for job in jobs:
            fleet.send("job", job)
        fleet.wait(done, PATIENCE)
        time.sleep(1)  # for messages that may be delivered twice
        exits = fleet.stop()
        log = fleet.log()
    result = judge(who, kind, log, jobs, sent, exits)
    (folder / "result.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    return result


def judge(who, kind, log, jobs, sent, exits):
    runs = [run for job in jobs for run in log.runs[job]]
    if not runs:
        raise SystemExit(f"{who} on {kind}: no job has started")
    again = [len(log.receipts[job]) - 1 for job in jobs if log.receipts[job]]
    last = max(run.b for run in runs)
    span = (last - min(run.b for run in runs)) / SECOND
    free = {job: log.runs[job][0].b for job in sent if log.started(job)}
    # A backlog that is over at once leaves no time for others.
    held = [(b - log.receipts[job][0].at) / SECOND for job, b in free.items()] or [0.0]
    waited = [(b - sent[job]) / SECOND for job, b in free.items()] or [0.0]
    return Result(
        who=who,
        broker=kind,
        over=max(0, most_in_any_window([(run.a, run.b) for run in runs], WINDOW * SECOND) - LIMIT),
        span=span,
        ideal=(len(jobs) // LIMIT - 1) * WINDOW,
        republished=max(again),
        republished_mean=statistics.mean(again),
        attempts=max(run.retries for run in runs),
        held=max(held),
        held_median=statistics.median(held),
        waited=max(waited),
        waited_median=statistics.median(waited),
        free=len(sent),
        late=sum(free.get(job, last) >= last for job in sent),
        lost=sum(not log.started(job) for job in jobs),
        twice=sum(len(log.runs[job]) > 1 for job in jobs),
        exits=exits,
    )


def broken(result):
    """Returns the promises of ours that the run broke, on a machine of any load."""
    promises = {
        f"{result.over} over the limit": result.over == 0,
        f"{result.lost} jobs lost": result.lost == 0,
        f"{result.twice} jobs started twice": result.twice == 0,
        # Whenever the machine stalls for longer than the grace of a task's place, the task goes back once more.
        f"the average job was republished {result.republished_mean:.2f} times": result.republished_mean <= 1,
        f"attempts went up to {result.attempts}": result.attempts == 0,
        f"{result.late} of {result.free} tasks without a limit started after the backlog": result.late == 0,
        f"the workers ended with {result.exits}": not any(result.exits) and None not in result.exits,
    }
    return [wrong for wrong, kept in promises.items() if not kept]


def slow(result):
    """Returns what was too slow, or repeated, for an idle machine."""
    goals = {
        f"{result.span:.1f} s instead of {result.ideal} s": result.broker != "redis"
        or result.span <= 1.1 * result.ideal,
        f"a task without a limit waited {result.held:.3f} s in a worker": result.held < 0.1,
        f"a job was republished {result.republished} times": result.republished <= 1,
    }
    return [wrong for wrong, kept in goals.items() if not kept]


COLUMNS = {
    "who limits": lambda r: WHO[r.who],
    "broker": lambda r: r.broker,
    "over the limit": lambda r: r.over,
    "span, s": lambda r: f"{r.span:.1f}",
    "of ideal": lambda r: f"{r.span / r.ideal:.2f}",
    "republished, max": lambda r: r.republished,
    "mean": lambda r: f"{r.republished_mean:.2f}",
    "attempts, max": lambda r: r.attempts,
    "lost": lambda r: r.lost,
    "twice": lambda r: r.twice,
    "unlimited, receipt to start, worst": lambda r: f"{r.held:.3f}",
    "median": lambda r: f"{r.held_median:.3f}",
    "sent to start, worst": lambda r: f"{r.waited:.2f}",
    "median ": lambda r: f"{r.waited_median:.2f}",
}


def line(cells):
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target/fleet/celery", help="where the evidence goes")
    parser.add_argument("--broker", choices=KINDS, help="only this one")
    parser.add_argument("--who", choices=WHO, help="only this row")
    parser.add_argument(
        "--plant", action="store_true", help="give each worker its own limit, which the checks must detect"
    )
    options = parser.parse_args()
    out = options.out.resolve()

    print(f"{JOBS} jobs of {JOB_SECONDS * 1000:g} ms on {LIMIT} starts per {WINDOW} s, {WORKERS} workers of {CHILDREN}")
    print("\n" + line(COLUMNS) + "\n" + line("---" for _ in COLUMNS), flush=True)
    wrong = []
    for who in [options.who] if options.who else WHO:
        for kind in [options.broker] if options.broker else KINDS:
            result = measure(who, kind, out, plant=options.plant)
            print(line(cell(result) for cell in COLUMNS.values()), flush=True)
            if who == "ours":
                wrong += [f"{WHO[who]} on {kind}: {what}" for what in broken(result) + slow(result)]
    if options.who in (None, "ours") and options.broker in (None, "redis"):
        survival = killed.measure(empty(out / "killed"), plant=options.plant)
        print(
            f"\none of {killed.WORKERS} workers killed: " + ", ".join(f"{k} {v}" for k, v in asdict(survival).items())
        )
        wrong += [f"killed: {what}" for what in killed.broken(survival)]
    sys.exit("\n".join(["", *wrong]) if wrong else 0)


if __name__ == "__main__":
    main()
