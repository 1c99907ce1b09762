"""Compares decisions per second on one key through one Redis, ours and others: rivals.py [ROUNDS]

Prints a table in Markdown for four processes, and one for one process. Run it with the bench's Python (`make peers` makes it, and Node's
packages). All take turns in each round; medians count. Two limits: *spent* is 100 per 1 s, where nearly all calls are denied, and
*open* is never full.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from loads import ROOT

sys.path.insert(0, str(ROOT / "tests/torture/storm"))
import peers
from many import Processes
from servers import Redis

PROCESSES = (4, 1)
SPAN = 2  # seconds
DEMANDS = {"spent": (100, 1), "open": (100_000_000, 1)}
NODE = ["granted", "direct", "rate-limiter-flexible, Redis"]

# The call is inlined in the loop; the clock is read after each batch.
LOOP = """
def go(until, {names}, clock=clock):
    total = admitted = 0
    while clock() < until:
        for _ in range({batch}):
            answer = {call}
            if {admitted}:
                admitted += 1
        total += {batch}
    return total, admitted
"""


def loop(peer, batch):
    names = ", ".join(f"{name}={name}" for name in peer.names)
    space = dict(peer.names, clock=time.time)
    exec(LOOP.format(names=names, call=peer.call, admitted=peer.admitted, batch=batch), space)
    return space["go"]


def serve(pipe):
    """Runs a Python process: opens the limiter of each job, and calls it as fast as possible at each signal."""
    while (job := pipe.recv()) is not None:
        name, url, limit_name, limit, window = job
        make = {name: make for name, _, make in peers.ON_SERVER}[name]
        go = loop(make(url, limit_name, limit, window), 100 if name == "granted" else 1)
        pipe.send("open")
        start, until = pipe.recv()
        time.sleep(max(0.0, start - time.time()))
        began = time.perf_counter()
        pipe.send((*go(until), time.perf_counter() - began))


class NodeProcess:
    """A Node process, with the interface of a pipe."""

    def __init__(self):
        self._process = subprocess.Popen(
            ["node", ROOT / "bench/node/served.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, job):
        if len(job) == 2:
            job = {"start": job[0] * 1000, "until": job[1] * 1000}
        else:
            job = dict(zip(("peer", "url", "name", "limit", "window"), job))
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def recv(self):
        return json.loads(self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def once(pipes, job):
    """Returns decisions per second and admissions of all processes together."""
    for pipe in pipes:
        pipe.send(job)
    for pipe in pipes:
        pipe.recv()
    start = time.time() + 0.1
    for pipe in pipes:
        pipe.send((start, start + SPAN))
    answers = [pipe.recv() for pipe in pipes]
    return sum(total / took for total, _, took in answers), sum(admitted for _, admitted, _ in answers)


def show(count, seen):
    print(
        f"\n| {count} process{'es' * (count > 1)} | decisions per second | admitted in {SPAN} s | granted, compared | direct, compared |"
    )
    print("| --- | --- | --- | --- | --- |", flush=True)
    for (demand, language, name), figures in seen.items():
        per_second, admitted = (median(column) for column in zip(*figures))
        ratios = []
        for ours in ("granted", "direct"):
            # From the same round, so that other load of the machine affects both.
            pairs = zip(seen[demand, language, ours], figures)
            ratios.append(f"{median(mine / theirs for (mine, _), (theirs, _) in pairs):.2f} ×")
        print(
            f"| {language}, {name}, {demand} | {per_second:,.0f} | {admitted:,.0f} | {' | '.join(ratios)} |", flush=True
        )


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory(prefix="rivals-") as directory:
        server = Redis(Path(directory))
        url = server.url(server.address[1])
        python, node = Processes(max(PROCESSES), serve), [NodeProcess() for _ in range(max(PROCESSES))]
        cases = [("Python", python.pipes, name) for name, _, _ in peers.ON_SERVER] + [
            ("Node", node, name) for name in NODE
        ]
        for count in PROCESSES:
            seen = defaultdict(list)
            for number in range(rounds):
                for demand, limit in DEMANDS.items():
                    for language, pipes, name in cases:
                        own = f"{language}-{name.split(',')[0].replace(' ', '-')}-{demand}-{count}-{number}"
                        seen[demand, language, name].append(once(pipes[:count], (name, url, own, *limit)))
            show(count, seen)
        python.end()
        for one in node:
            one.end()


if __name__ == "__main__":
    main()
