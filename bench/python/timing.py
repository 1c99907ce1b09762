"""The timing of cases: in batches, in slices that all cases take in turn, and decision by decision for the tail."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice, repeat
from statistics import median
from typing import Any

SLICE, SLICES = 5_000_000, 14  # The time of each case.
SINGLES = 200  # The decisions of each slice that are timed one by one, for at most a fifth of its time.

# The call is in the loop itself: a function around it would add a third to the fastest call. Both clocks are read
# inside, so that the start of an event loop is not counted.
LOOPS = """
{begin}def batch(keys, {names}, wall=perf_counter_ns, cpu=process_time_ns):
    c = cpu()
    t = wall()
    for key in keys:
        {call}
    t = wall() - t
    return t, cpu() - c

{begin}def singles(keys, {names}, wall=perf_counter_ns):
    times = []
    end = wall() + {most}
    for key in keys:
        t = wall()
        {call}
        took = wall() - t
        times.append(took)
        if t > end:
            break
    return times
"""


@dataclass
class Peer:
    """A limiter and its call. `call` is an expression of `names` (and of `key`), as its users would write it."""

    call: str
    names: dict[str, Any]
    admitted: str = "answer"  # An expression of `answer`, the result of `call`.
    renew: Callable[[], Any] | None = None  # Empties it. Its result, if any, is the next key to use.
    capacity: int = 1_000  # The decisions until it is full.
    settle: Callable[[], Any] | None = None  # Waits for its background threads, which would slow other cases.

    def decider(self) -> Callable[[], bool]:
        """Returns one decision as a function that returns whether it was admitted."""
        return eval(f"lambda key=None: bool([{self.admitted} for answer in ({self.call},)][0])", self.names)

    def loops(self, begin: str = "") -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Compiles the functions of LOOPS."""
        names = ", ".join(f"{name}={name}" for name in self.names)
        space = dict(self.names, perf_counter_ns=time.perf_counter_ns, process_time_ns=time.process_time_ns)
        exec(LOOPS.format(begin=begin, names=names, call=self.call, most=SLICE // 5), space)
        return space["batch"], space["singles"]


@dataclass
class Case:
    name: str
    package: str
    peer: Peer
    keys: list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop | None = None
    pace: float = 0.0  # The recent time of one decision.
    batches: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.peer.call.startswith("await ") and self.loop is None:
            raise ValueError(f"{self.name} needs an event loop")
        self._batch, self._singles = self.peer.loops("async " if self.loop else "")
        self._all: Iterator[str] | None = cycle(self.keys) if self.keys and len(self.keys) > 1 else None

    def next_keys(self, count: int) -> Iterator[Any]:
        key = self.peer.renew() if self.peer.renew else None
        if self._all is not None:
            return iter(list(islice(self._all, count)))
        return repeat(key or (self.keys[0] if self.keys else None), count)

    def run(self, function: Callable[..., Any], count: int) -> Any:
        answer = function(self.next_keys(count))
        return self.loop.run_until_complete(answer) if self.loop else answer

    def fitting(self) -> int:
        """Returns the size of a batch. A slow peer has smaller batches, so that several fit into a slice."""
        return max(1, min(self.peer.capacity, int(SLICE / 10 / self.pace)))

    def slice(self) -> None:
        end = time.perf_counter_ns() + SLICE
        if not self.batches:
            self.pace = self.run(self._batch, 1)[
                0
            ]  # Estimates its speed. The first decisions are slower and do not count.
            count = self.fitting()
            self.pace = self.run(self._batch, count)[0] / count
        count = self.fitting()
        while True:
            took, cpu = self.run(self._batch, count)
            self.pace = took / count
            self.batches.append(self.pace)
            self.cpu.append(cpu / count)
            if time.perf_counter_ns() > end:
                break
        self.tail += self.run(self._singles, min(SINGLES, self.peer.capacity))
        if self.peer.settle:
            self.peer.settle()

    def result(self) -> dict[str, Any]:
        answer = {"ns": round(median(self.batches), 1)} | quantiles(self.tail)
        return answer | {"cpu_ns": round(median(self.cpu), 1)} | self.extra


def quantiles(tail: list[int]) -> dict[str, int]:
    """The percentiles of single decisions, including one read of the clock. Omitted with too few decisions."""
    ordered = sorted(tail)
    places = {"p99": (100, 0.99), "p999": (1_000, 0.999)}
    return {
        name: ordered[int(len(ordered) * share)] for name, (least, share) in places.items() if len(ordered) >= least
    }


def measure(cases: list[Case]) -> None:
    """Times all cases in turn and prints the results."""
    gc.collect()
    gc.freeze()  # Objects built beforehand, such as 100,000 buckets, count for no case.
    for _ in range(SLICES):
        for case in cases:
            case.slice()
    for case in cases:
        show(case.name, case.package, case.result())


def label(name: str, package: str, what: str) -> str:
    return f"{name} {what}" if package == "workglow-limit" else f"{name}: {what}"


def show(name: str, package: str, figures: dict[str, Any]) -> None:
    print(json.dumps({"case": f"python {name}", "group": "python", "peer": package} | figures), flush=True)
