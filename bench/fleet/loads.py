"""The loads of a fleet's sites, and the processes that are sites."""

import random
import sys
import threading
import time
from pathlib import Path

from workglow_limit import AcquireTimeout, RateLimiter, Store

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench/python"), str(ROOT / "examples/fleet")]
from evidence import Recorder

SITES = 8
WAITERS = 4  # of a site
AGAIN = 0.002  # seconds after which a denied caller retries at the latest


class Site:
    """A process of a fleet, under a load."""

    def __init__(self, number, limiter, limit, window, folder):
        self.number, self.limiter, self.limit, self.window = number, limiter, limit, window
        self.recorder = Recorder(folder, "site")
        self.began = 0.0

    def start(self):
        asked = time.monotonic_ns()
        decision = self.limiter.decide()
        if decision:
            self.recorder.start(asked, None)
        return decision

    def wait(self, until):
        asked = time.monotonic_ns()
        try:
            self.limiter.acquire(timeout=max(0.0, until - time.monotonic()))
        except AcquireTimeout:
            return
        self.recorder.start(asked, None)


def callers(site, end):
    """Starts as often as possible: a denied caller retries at `retry_after`, or slightly sooner."""
    while time.monotonic() < end:
        decision = site.start()
        if not decision:
            time.sleep(min(decision.retry_after, AGAIN))


def waiters(site, end):
    while time.monotonic() < end:
        site.wait(end)


def evenly(site, end):
    """Calls at random times, 80 % of the limit over all sites. A denied caller gives up."""
    pace = 0.8 * site.limit / site.window / SITES
    at = site.began
    while (at := at + random.expovariate(pace)) < end:
        time.sleep(max(0.0, at - time.monotonic()))
        site.start()


def hot(site, end):
    """Puts all load on one site, and moves it to another one every half of the window."""
    half = site.window / 2
    while (now := time.monotonic()) < end:
        turn = int((now - site.began) / half)
        until = min(end, site.began + (turn + 1) * half)
        if turn % SITES == site.number:
            site.wait(until)
        else:
            time.sleep(max(0.0, until - time.monotonic()))


# Each load with its number of threads per site.
LOADS = {"callers": (callers, 1), "waiters": (waiters, WAITERS), "evenly": (evenly, 1), "hot": (hot, WAITERS)}


def serve(pipe):
    """Runs a process: opens the limit of each job, reports that, waits for the signal to start, and applies the load until the end."""
    while (job := pipe.recv()) is not None:
        load, number, url, name, limit, window, folder = job
        limiter = RateLimiter(Store(url), name, max_executions=limit, window_size_in_seconds=window)
        limiter.peek()
        site = Site(number, limiter, limit, window, folder)
        drive, threads = LOADS[load]
        pipe.send("open")
        site.began, end = pipe.recv()
        time.sleep(max(0.0, site.began - time.monotonic()))
        running = [threading.Thread(target=drive, args=(site, end)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        pipe.send("done")
