"""A whale and three tenants on one shared limit: who starts when.

    target/venv/bin/python tests/fleet/celery/tenants.py [--broker redis|rabbitmq-classic|rabbitmq-quorum] [--jobs 3000] [--out DIR]

Three workers with two prefork children each get `--jobs` jobs of the whale at once, and then jobs of three tenants with
the shares 1, 3 and 2, on 20 starts per second. The same jobs under a limit without tenants show the throughput.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path

from brokers import KINDS
from fleet import ROOT, Fleet, broker
from evidence import SECOND, most_in_any_window
from workglow_limit import Store

LIMIT, WINDOW = 20, 1  # starts per seconds
WORKERS, CHILDREN = 3, 2
SHARES = {"whale": 1, "acme": 1, "birch": 3, "cedar": 2}


@dataclass
class Result:
    over: int  # the most starts that surely lie in one window, above the limit
    lost: int  # jobs that never started
    twice: int  # jobs that started more than once
    span: float  # s from the first start to the last
    ideal: float
    first: dict[
        str, tuple[float, int]
    ]  # each tenant's first job: s from its receipt to its start, and other starts in between
    parts: dict[str, float]  # of the starts while all tenants had jobs that a worker had received
    counted: int  # these starts
    again: float  # how often a job was delivered again: the mean


def environment(folder, policy):
    return {
        "FLEET_WHO": "ours",
        "FLEET_HOLD": "10",
        "FLEET_VISIBILITY": "",
        "FLEET_LIMIT": str(LIMIT),
        "FLEET_WINDOW": str(WINDOW),
        "FLEET_POLICY": policy,
        "FLEET_TENANTS": "1" if policy.endswith("shared") else "",
        "FLEET_JOB_SECONDS": "0.01",
        "FLEET_STORE": f"sqlite:{folder}/limits.db",
    }


def measure(kind, folder, count, policy=f"{LIMIT}/{WINDOW}s shared"):
    """One run. Each tenant has as many jobs as its share of those that start while the whale has jobs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    each = count // 2
    jobs = {"whale": [f"whale-{number}" for number in range(count)]} | {
        tenant: [f"{tenant}-{number}" for number in range(each * share)]
        for tenant, share in SHARES.items()
        if tenant != "whale"
    }
    everything = [job for of in jobs.values() for job in of]
    if policy.endswith("shared"):
        store = Store(f"sqlite:{folder}/limits.db")
        store.limiter("fleet", policy).peek("whale")
        for tenant, share in SHARES.items():
            store.share("fleet", tenant, share)
    # All is sent before the workers start, so that the whale has jobs for as long as the others.
    with broker(kind, folder) as url, Fleet(folder, url, [], CHILDREN) as fleet:
        for tenant, of in jobs.items():
            for job in of:
                fleet.send("job", job, args=[tenant])
        fleet.join([environment(folder, policy)] * WORKERS)
        log = fleet.wait(lambda log: all(map(log.ended, everything)), 60 + 3 * len(everything) // LIMIT)
        fleet.stop()
        log = fleet.log()
    return judge(log, jobs)


def judge(log, jobs):
    starts = sorted((log.runs[job][0].b, tenant) for tenant, of in jobs.items() for job in of if log.started(job))
    received = {job: receipts[0].at for job, receipts in log.receipts.items()}
    runs = [run for of in jobs.values() for job in of for run in log.runs[job]]
    first = {}
    for tenant, of in jobs.items():
        at, begun = min(received[job] for job in of), min(log.runs[job][0].b for job in of if log.started(job))
        first[tenant] = (begun - at) / SECOND, sum(at < start < begun for start, _ in starts)
    # From when all tenants wait until one of them has no job left, or none that a worker had.
    begin = max(min(received[job] for job in of) for of in jobs.values()) + WINDOW * SECOND
    end = min(max(log.runs[job][0].b for job in of if log.started(job)) for of in jobs.values())
    for tenant, of in jobs.items():
        waiting = 0
        events = sorted(
            [(received[job], 1) for job in of] + [(log.runs[job][0].b, -1) for job in of if log.started(job)]
        )
        for at, change in events:
            waiting += change
            if at > begin and waiting == 0:
                end = min(end, at)
                break
    counted = [tenant for at, tenant in starts if begin <= at < end]
    total = sum(map(len, jobs.values()))
    return Result(
        over=max(0, most_in_any_window([(run.a, run.b) for run in runs], WINDOW * SECOND) - LIMIT),
        lost=sum(not log.started(job) for of in jobs.values() for job in of),
        twice=sum(len(log.runs[job]) > 1 for of in jobs.values() for job in of),
        span=(starts[-1][0] - starts[0][0]) / SECOND,
        ideal=(total // LIMIT - 1) * WINDOW,
        first=first,
        parts={tenant: counted.count(tenant) / max(1, len(counted)) for tenant in jobs},
        counted=len(counted),
        again=sum(len(log.receipts[job]) - 1 for of in jobs.values() for job in of) / total,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target/fleet/tenants", help="where the evidence goes")
    parser.add_argument("--broker", choices=KINDS, default="redis")
    parser.add_argument("--jobs", type=int, default=300, help="those of the whale")
    options = parser.parse_args()
    for policy in (f"{LIMIT}/{WINDOW}s shared", f"{LIMIT}/{WINDOW}s"):
        print(policy, measure(options.broker, options.out.resolve() / options.broker, options.jobs, policy), flush=True)


if __name__ == "__main__":
    main()
