"""Run by test_fork.py. A limiter created at import is used in the master before, while and after children are forked. They
use it too, and threads of the master decide all the time. Prints the units that were admitted per key."""

import json
import multiprocessing
import os
import sys
import threading

from workglow_limit import RateLimiter, Store

LIMIT, CHILDREN, TRIES = 700, 20, 50

how, url = sys.argv[1:]
limiter = RateLimiter(Store(url, timeout=60), "jobs", max_executions=LIMIT, window_size_in_seconds=3600)
admitted_by_all, errors = 0, []
stop = threading.Event()


def work(tries, key="children"):
    return sum(limiter.try_acquire(key) is not None for _ in range(tries))


def child(_=None):
    admitted = work(TRIES), work(TRIES, "all")
    # A unit that a server granted too late for this process, on a busy machine, returns with its next request.
    for key in "children", "all":
        limiter.peek(key)
    return admitted


def keep_deciding(number):
    """Decides on a key that all share, and on new keys, which need new blocks."""
    global admitted_by_all
    round = mine = 0
    try:
        while not stop.wait(0.0005):
            mine += work(1, "all")
            for n in range(5):
                assert limiter.try_acquire(f"{number} {round} {n}") is not None
            round += 1
    except BaseException as error:
        errors.append(error)
    with lock:
        admitted_by_all += mine


def by_fork():
    pipes = []
    for _ in range(CHILDREN):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, json.dumps(child()).encode())
            os._exit(0)
        os.close(write)
        pipes.append(read)
    answers = [json.loads(os.read(read, 100)) for read in pipes]
    assert all(os.wait()[1] == 0 for _ in pipes)
    return answers


def by_multiprocessing():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return pool.map(child, range(CHILDREN), chunksize=1)


lock = threading.Lock()
before = work(50)
threads = [threading.Thread(target=keep_deciding, args=[n]) for n in range(3)]
for thread in threads:
    thread.start()
answers = by_fork() if how == "fork" else by_multiprocessing()
stop.set()
for thread in threads:
    thread.join()
assert not errors, errors
after = work(50)
admitted_by_all += sum(a for _, a in answers) + work(LIMIT, "all")
print(json.dumps({"before": before, "children": sum(c for c, _ in answers), "after": after, "all": admitted_by_all}))
