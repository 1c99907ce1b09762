"""Measures a fleet of eight sites on a real Redis: the used part of a limit, and the requests to the server: measure.py [PART-OF-A-ROW]

Prints a table in Markdown, row by row. Run it with the bench's Python (`make peers` makes it):

    target/bench/venv/bin/python bench/fleet/measure.py

*Used* is starts divided by the units that the limit allows in that time. A site is a process. The server is on this machine, over TCP.
"""

import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from loads import ROOT, SITES, serve

sys.path.insert(0, str(ROOT / "tests/torture/storm"))
from evidence import SECOND, most_in_any_window, read
from many import Processes
from servers import Redis
from workglow_limit import RateLimiter, Store

LIMITS = {"1,000/1 s": (1000, 1.0), "20,000/10 s": (20_000, 10.0), "100/2 s": (100, 2.0)}
WINDOWS = 4  # the length of each run in windows, and its least length in seconds
LEAST = 8

# The targets: the most requests per start, the least use.
MOST_REQUESTS = {("evenly", "1,000/1 s"): 0.5, ("evenly", "20,000/10 s"): 0.03}
ALWAYS_MOST = 1.1
LEAST_USED = {("hot", "1,000/1 s"): 0.95}


def run(server, folder, load, limit, window, dies=False):
    """Returns the use, the requests per start, the starts over the limit, and how many sites died: one at random in each window, if `dying`."""
    windows = max(WINDOWS, round(LEAST / window))
    spares = windows if dies else 0
    fleet, name = Processes(SITES + spares, serve), f"{load}-{limit}-{time.monotonic_ns()}"
    url = server.url(server.address[1])
    for number, pipe in enumerate(fleet.pipes):
        # (A spare replaces one that died.)
        pipe.send((load, number % SITES, url, name, limit, window, str(folder)))
        pipe.recv()
    before = server.requests()
    began = time.monotonic() + 0.2
    end = began + windows * window
    alive, deaths = list(range(SITES)), 0
    for number in alive:
        fleet.pipes[number].send((began, end))
    for turn in range(spares):
        time.sleep(max(0.0, began + (turn + random.random()) * window - time.monotonic()))
        which = random.randrange(SITES)
        fleet.processes[alive[which]].kill()
        alive[which] = SITES + turn
        fleet.pipes[alive[which]].send((time.monotonic(), end))
        deaths += 1
    for number in alive:
        fleet.pipes[number].recv()
    requests = server.requests() - before
    for number, (pipe, process) in enumerate(zip(fleet.pipes, fleet.processes)):
        if number in alive:
            pipe.send(None)
        else:
            process.kill()
        process.join()
    starts = read(folder)
    over = max(0, most_in_any_window(starts, round(window * SECOND)) - limit)
    return len(starts) / (limit * windows), requests / max(1, len(starts)), over, deaths


def on_the_wire(server, calls=1_000):
    """Counts the requests of a number of decisions with `?grants=never`, as the server sees them arrive."""
    url = server.url(server.address[1]) + "?grants=never"
    limiter = RateLimiter(Store(url), "direct", max_executions=calls // 2, window_size_in_seconds=60)
    limiter.peek()
    seen, is_watching, is_over = [], threading.Event(), threading.Event()

    def watch():
        for line in server.monitor(is_watching):
            if b'"PING"' in line:
                break
            seen.append(line)
        is_over.set()

    threading.Thread(target=watch, daemon=True).start()
    is_watching.wait()
    admitted = sum(limiter.try_acquire() is not None for _ in range(calls))
    server.ask("PING end")
    is_over.wait()
    wire = [line for line in seen if b" lua] " not in line]
    return admitted, calls, len(wire)


def row(load, name, text, figures):
    used, requests, over, deaths = figures
    most = MOST_REQUESTS.get((load, name), ALWAYS_MOST)
    missed = [f"over the limit by {over}"] if over else []
    missed += [f"missed: at most {most}"] if requests > most else []
    least = LEAST_USED.get((load, name))
    missed += [f"missed: at least {least} used"] if least and used < least else []
    died = f", {deaths} died" if deaths else ""
    print(f"| {text}{died} | {name} | {used:.3f} | {requests:.3f} | {most} | {'; '.join(missed)} |", flush=True)


ROWS = {
    "callers everywhere": ("callers", False),
    "waiters everywhere, 4 a site": ("waiters", False),
    "evenly at 80 %": ("evenly", False),
    "hot site moves every W/2, waiters": ("hot", False),
    "waiters everywhere, a site dies every W": ("waiters", True),
}


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory:
        server = Redis(Path(directory))
        print("| load | limit | used | requests per start | at most | |\n| --- | --- | --- | --- | --- | --- |")
        for text, (load, dies) in ROWS.items():
            for name, limit in LIMITS.items():
                if part in f"{text} {name}":
                    folder = Path(directory, f"{load}-{dies}-{limit[0]}")
                    os.mkdir(folder)
                    row(load, name, text, run(server, folder, load, *limit, dies))
        if part in "direct":
            admitted, calls, wire = on_the_wire(server)
            print(
                f"\n`?grants=never`: {calls} decisions, of which {admitted} admitted, are {wire} requests on the wire."
            )


if __name__ == "__main__":
    main()
