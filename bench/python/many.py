"""Several threads and several processes on one limit that admits all."""

import multiprocessing
import threading
import time
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any

import peers
from timing import label, quantiles, show

SPAN, TURNS = 35_000_000, 2  # Each case runs twice for 35 ms.
OPEN = (100, 1e-6)


def hammer(loops, until: int, batch: int) -> tuple[int, list[float], list[int]]:
    """Returns the number of decisions, the time of one per batch, and the times of single ones."""
    total, batches, tail = 0, [], []
    in_batches, in_singles = loops
    while time.perf_counter_ns() < until:
        if batch > 1:
            took, _ = in_batches(repeat(None, batch))
            batches.append(took / batch)
            total += batch
        tail += (one := in_singles(repeat(None, batch // 4 + 1)))
        total += len(one)
    return total, batches or [float(one) for one in tail], tail


class Sum:
    """Combines the results of several turns of one case."""

    def __init__(self) -> None:
        self.counts, self.took, self.cpu = [], 0, 0

    def add(self, counts: list, took: int, cpu: int) -> None:
        self.counts, self.took, self.cpu = self.counts + counts, self.took + took, self.cpu + cpu

    def figures(self) -> dict[str, Any]:
        total = sum(count for count, _, _ in self.counts)
        batches = [one for _, several, _ in self.counts for one in several]
        tail = [one for _, _, several in self.counts for one in several]
        counts = {"ns": round(median(batches), 1)} | quantiles(tail)
        return counts | {"cpu_ns": round(self.cpu / total, 1), "per_s": round(total * 1e9 / self.took)}


def threads_once(loops, count: int) -> tuple[list, int, int]:
    counts, start, cpu = [], time.perf_counter_ns(), time.process_time_ns()
    running = [threading.Thread(target=lambda: counts.append(hammer(loops, start + SPAN, 100))) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return counts, time.perf_counter_ns() - start, time.process_time_ns() - cpu


def measure_threads(where: str, is_wanted) -> None:
    """1 and 2 threads. A peer that must be emptied has a limit of 100,000,000 per s here, because no thread can stop to
    empty it."""
    cases = []
    for name, package, make in [
        *peers.IN_MEMORY,
        ("sqlite", "workglow-limit", partial(peers.ours, f"sqlite:{where}/python.db")),
    ]:
        if name == "limits moving window, memory":
            continue  # It inserts at the beginning of a list. With a limit this high, that would be all of its time.
        for count in (1, 2):
            full = label(name, package, f"admit, {count} thread{'s' * (count > 1)}")
            if is_wanted(full):
                peer = make(*OPEN, False)
                if peer.renew:
                    peer = make(100_000_000, 1, False)
                cases.append((full, package, count, peer, Sum()))
    for _ in range(TURNS):
        for _, _, count, peer, sum_ in cases:
            sum_.add(*threads_once(peer.loops(), count))
            if peer.settle:
                peer.settle()
    for full, package, count, _, sum_ in cases:
        show(full, package, sum_.figures() | {"threads": count})


def serve(pipe) -> None:
    """A process: opens the limiter, waits until the given time, and decides in a loop."""
    opened = {}
    while (order := pipe.recv()) is not None:
        name, path, limit, window, start, until = order
        if (path, name) not in opened:
            make = {name: make for name, _, make in peers.ON_DISK}[name]
            opened[path, name] = make(path, limit, window).loops()
            pipe.send("open")
            continue
        batch = 100 if name == "sqlite" else 1
        while time.perf_counter_ns() < start:
            pass
        cpu = time.process_time_ns()
        answer = hammer(opened[path, name], until, batch)
        pipe.send((answer, time.process_time_ns() - cpu))


class Processes:
    """Processes that are started once for all cases."""

    def __init__(self, count: int, target) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(count):
            mine, theirs = context.Pipe()
            self.processes.append(context.Process(target=target, args=(theirs,), daemon=True))
            self.processes[-1].start()
            self.pipes.append(mine)

    def ask(self, count: int, order) -> list[Any]:
        for pipe in self.pipes[:count]:
            pipe.send(order)
        return [pipe.recv() for pipe in self.pipes[:count]]

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes):
            pipe.send(None)
            process.join()


def measure_processes(where: str, is_wanted) -> None:
    cases = []
    for name, package, _ in peers.ON_DISK:
        for count in (1, 2, 4):
            full = label(name, package, f"admit, {count} process{'es' * (count > 1)}")
            if is_wanted(full):
                cases.append((full, package, name, count, Sum()))
    if not cases:
        return
    processes = Processes(max(count for _, _, _, count, _ in cases), serve)
    for name in {name for _, _, name, _, _ in cases}:
        for pipe in processes.pipes:  # One after the other, because the first must create the database.
            pipe.send((name, path_of(where, name), *OPEN, 0, 0))
            pipe.recv()
    for _ in range(TURNS):
        for _, _, name, count, sum_ in cases:
            start = time.perf_counter_ns() + 3_000_000
            counts = processes.ask(count, (name, path_of(where, name), *OPEN, start, start + SPAN))
            took = time.perf_counter_ns() - start
            sum_.add([one for one, _ in counts], took, sum(cpu for _, cpu in counts))
    processes.end()
    for full, package, _, count, sum_ in cases:
        show(full, package, sum_.figures() | {"processes": count})


def path_of(where: str, name: str) -> str:
    return f"{where}/processes-{name.split()[0].strip(',')}.db"
