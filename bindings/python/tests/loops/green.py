"""Programs of greenlets, one per test: `green.py gevent|eventlet patched|plain PROGRAM ARGUMENT…`.

Each runs in its own process, because monkey-patching cannot be undone. A program raises an exception for each failure.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

LIBRARY, IS_PATCHED = sys.argv[1], sys.argv[2] == "patched"

if LIBRARY == "gevent":
    import gevent as green
    from gevent import monkey

    if IS_PATCHED:
        monkey.patch_all()
    fork = os.fork if IS_PATCHED else green.fork
    wait_for, native = green.joinall, monkey.get_original("_thread", "start_new_thread")

    def kill(greenlet):
        greenlet.kill()
else:
    # eventlet's own name lookup imports every installed HTTP client, and some do not work with its sockets.
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eventlet prints a deprecation warning.
        import eventlet as green

    if IS_PATCHED:
        green.monkey_patch()
    fork, native = os.fork, green.patcher.original("_thread").start_new_thread

    def wait_for(greenlets):
        for greenlet in greenlets:
            greenlet.wait()

    def kill(greenlet):
        greenlet.kill()


spawn, sleep = green.spawn, green.sleep

from workglow_limit import (
    AcquireTimeout,
    ConcurrencyLimiter,
    ManualClock,
    Permit,
    RateLimiter,
    Store,
)

sys.path.append(str(Path(__file__).parents[4] / "examples/fleet"))
from evidence import Start, most_in_any_window

SECOND = 1_000_000_000

#: Ends a program that hangs. No program here takes nearly as long.
DEADLINE = 100


def until(condition):
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, f"the condition did not hold within {DEADLINE} s"
        sleep(0.001)
    return found


class Others:
    """A greenlet that uses no limits."""

    def __init__(self):
        self.count = 0
        spawn(self.run)

    def run(self):
        while True:
            sleep(0.001)
            self.count += 1

    def advance(self, steps=30):
        """Waits until it has done a number of further steps."""
        goal = self.count + steps
        until(lambda: self.count >= goal)


def caught(call):
    try:
        return call()
    except Exception as error:
        return error


# ---- waiting ----


def order(url):
    """A thousand greenlets wait. They start in the order of their calls, within the limit, and other greenlets continue."""
    limiter = RateLimiter(Store(url), "jobs", max_executions=250, window_size_in_seconds=0.2)
    others, order, starts = Others(), [], []

    def job(number):
        before = time.monotonic_ns()
        with limiter.acquire() as permit:
            after, ready = time.monotonic_ns(), permit.ready_at_monotonic
            starts.append(Start(before if ready is None else int(ready * SECOND), after, ""))
            order.append(number)

    wait_for([spawn(job, number) for number in range(1000)])
    assert order == list(range(1000))
    assert most_in_any_window(starts, int(0.2 * SECOND)) <= 250
    # At least three windows have passed.
    assert others.count > 3


def priorities(url):
    store = Store(url)
    limiter = ConcurrencyLimiter(1, store=store, name="jobs")
    held, started = limiter.try_acquire(), []

    def job(number, priority):
        with limiter.acquire(priority=priority):
            started.append(number)

    jobs = [spawn(job, number, -number // 3) for number in range(9)]
    until(lambda: store.snapshot().limits[0].waiting == 9)
    held.complete()
    wait_for(jobs)
    assert started == sorted(range(9), key=lambda number: (-number // 3, number)), started


def no_overtaking(url):
    limiter, started = ConcurrencyLimiter(1, store=Store(url), name="jobs"), []

    def start(name):
        with limiter.acquire():
            started.append(name)

    held = limiter.acquire()
    first = spawn(start, "first")
    sleep(0)
    held.complete()
    # A unit is free, and the first waiter has not been notified yet.
    start("second")
    wait_for([first])
    assert started == ["first", "second"], started


def entered(url):
    """Each greenlet leaves `with limiter` with its own permit, also one that is killed in the body."""
    limiter, order = ConcurrencyLimiter(2, store=Store(url), name="jobs"), []

    def job(number):
        with limiter as outer:
            with green.Timeout(0.1 * number, False), limiter as inner:
                order.append(number)
                assert outer.fence != inner.fence
                sleep(DEADLINE)
            outer.renew()

    wait_for([spawn(job, number) for number in range(1, 6)])
    assert order, "no greenlet was in the inner body"
    assert limiter.peek().remaining == 2

    def body():
        with limiter:
            sleep(DEADLINE)

    inside = [spawn(body), spawn(body)]
    until(lambda: limiter.peek().remaining == 0)
    for left, greenlet in enumerate(inside, 1):
        kill(greenlet)
        until(lambda left=left: limiter.peek().remaining == left)


def timeouts(url):
    limiter = ConcurrencyLimiter(1, store=Store(url), name="jobs")
    with limiter.acquire():
        answers = []
        wait_for([spawn(lambda: answers.append(caught(lambda: limiter.acquire(timeout=0.01)))) for _ in range(5)])
        assert [type(answer) for answer in answers] == [AcquireTimeout] * 5, answers
        assert {answer.key for answer in answers} == {None}
        with green.Timeout(0.02, False):
            limiter.acquire()
            raise AssertionError("the start was admitted")
    assert limiter.peek().remaining == 1
    with limiter.acquire(timeout=0.01):
        pass


def late(url):
    """A late waiter with enough grace starts with its place."""
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.acquire()
    permits = []
    waiter = spawn(lambda: permits.append(limiter.acquire(grace=0.5)))
    until(lambda: limiter.peek().retry_after > 60)  # It has its place now.
    limiter.reserve()
    clock.advance(60.3)  # The clock jumps, so the waiter is late.
    wait_for([waiter])
    assert permits[0].ready_at is not None


def ended(url, how):
    """A greenlet that is killed or times out returns its place."""
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.acquire()

    def wait():
        with green.Timeout(0.05 if how == "timeout" else None, False):
            limiter.acquire()
            raise AssertionError("the start was admitted")

    waiter = spawn(wait)
    until(lambda: limiter.peek().retry_after > 60)  # It has its place now.
    if how == "kill":
        kill(waiter)
    until(lambda: limiter.peek().retry_after == 60)


def admitted_and_killed():
    """A greenlet that is admitted and then killed before it is notified returns the start."""
    limiter = ConcurrencyLimiter(1)

    def job():
        with limiter.acquire():
            sleep(DEADLINE)

    for number in range(20):
        held = limiter.try_acquire()
        waiter = spawn(job)
        sleep(0)
        held.complete()
        # gevent kills in a callback that runs right after the one that notifies the waiter; eventlet kills at once.
        while LIBRARY == "eventlet" and number % 2 and limiter.can_proceed():
            sleep(0)
        kill(waiter)
        until(limiter.can_proceed)


def woken_by_threads():
    limiter, done = ConcurrencyLimiter(1), []

    def complete(held):
        held.complete()
        done.append(held)

    for _ in range(30):
        native(complete, (limiter.acquire(),))
        limiter.acquire().complete()
    until(lambda: len(done) == 30)  # A thread that Python ends within a call would abort the process.


def destroyed():
    """The next completion finds that a hub was destroyed, and ends its waiters."""
    store, ended = Store("memory:"), []
    limiter = ConcurrencyLimiter(1, store=store, name="jobs")
    held = limiter.acquire()

    def waiting():
        return store.snapshot().limits[0].waiting

    def hub():
        for _ in range(3):
            spawn(limiter.acquire)
        until(lambda: waiting() == 3)
        green.get_hub().destroy(destroy_loop=True)
        ended.append(1)

    sleep(0)  # The main greenlet has its hub before the thread has one.
    native(hub, ())
    until(lambda: ended)
    held.complete()
    until(lambda: waiting() == 0)
    limiter.acquire().complete()


def hooks(url):
    """Hooks may let other greenlets run."""
    limiter = RateLimiter(Store(url), "jobs", max_executions=10, window_size_in_seconds=0.05)
    events, order = [], []

    def hear(event):
        sleep(0)
        events.append(event.event)

    limiter.on("throttled", hear)

    def job(number):
        limiter.acquire()
        order.append(number)

    wait_for([spawn(job, number) for number in range(50)])
    assert order == list(range(50)), order
    assert events and set(events) == {"throttled"}


def without_a_hub(url):
    """The main program, before any greenlet exists."""
    limiter = RateLimiter(Store(url), "jobs", max_executions=1, window_size_in_seconds=0.01)
    for _ in range(3):
        limiter.acquire()


def in_the_hub(url):
    """Calls in the hub's own greenlet do not wait."""
    limiter = RateLimiter(Store(url), "jobs", max_executions=2, window_size_in_seconds=60)
    answers = []

    def call():
        answers.append(
            caught(lambda: (limiter.try_acquire(), limiter.decide(), limiter.try_acquire(), limiter.stats()))
        )

    if LIBRARY == "gevent":
        green.get_hub().loop.run_callback(call)
    else:
        green.hubs.get_hub().schedule_call_global(0, call)
    first, second, third, stats = until(lambda: answers)[0]
    assert first and second.admitted and third is None and stats.admitted == 2


def threads(url):
    """Each thread has a hub, and a thread without a hub waits next to them."""
    limiter, running, most, done = ConcurrencyLimiter(3, store=Store(url), name="jobs"), [], [], []

    def job(of):
        with limiter.acquire():
            running.append(of)
            most.append(len(running))
            time.sleep(0) if of == "plain" else sleep(0)
            running.remove(of)
        done.append(of)

    sleep(0)
    hubs = ["main"]

    def hub(of):
        sleep(0)
        hubs.append(of)
        wait_for([spawn(job, of) for _ in range(50)])

    def plain():
        for _ in range(50):
            job("plain")

    for of in range(3):
        native(hub, (of,))
        until(lambda: of in hubs)  # With patching, gevent cannot create two hubs at the same time.
    native(plain, ())
    # The main greenlet has a hub, too.
    hub("main")
    until(lambda: len(done) == 250)
    assert max(most) <= 3
    assert limiter.peek().remaining == 3


# ---- a store that does not answer ----


@contextmanager
def locked(path):
    """The database while another program has it locked."""
    stranger = subprocess.Popen(["sqlite3", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        stranger.stdin.write(b"begin exclusive;\nselect 'ready';\n")
        stranger.stdin.flush()
        while stranger.stdout.readline().strip() != b"ready":
            pass
        yield
    finally:
        stranger.kill()
        stranger.wait()


@contextmanager
def stopped(pid):
    """The server while it accepts requests and answers none."""
    os.kill(int(pid), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(pid), signal.SIGCONT)


def away(url, whom):
    """The block that keeps a store from answering."""
    return locked(whom) if url.startswith("sqlite") else stopped(whom)


def patient(url):
    """A store with a timeout longer than this test, whose starts all ask the server."""
    store = Store(url, timeout=DEADLINE, durability="commit" if url.startswith("sqlite") else "budget")
    store.open()
    return store


def stalled_store(url, whom):
    """A store that does not answer blocks only the greenlets that use it. A call that blocked the hub would do so until
    the store's timeout, and then raise."""
    store, others = patient(url), Others()
    limiter = RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600)
    slots = ConcurrencyLimiter(10, store=store, name="slots")
    near = RateLimiter(Store("memory:"), "near", max_executions=1, window_size_in_seconds=0.01)
    ends = [limiter.acquire(), limiter.acquire(), slots.acquire()]
    place = limiter.reserve()
    decided = []
    calls = [
        lambda: limiter.acquire("a"),
        lambda: limiter.acquire("a", timeout=DEADLINE),
        lambda: limiter.try_acquire("b"),
        lambda: decided.append(limiter.decide("c")),
        lambda: limiter.reserve("d"),
        lambda: limiter.present(place),
        lambda: limiter.acquire(place=limiter.reserve("p").to_text()),
        lambda: limiter.pause(0.001, "e"),
        lambda: limiter.clear("f"),
        lambda: limiter.stats("g"),
        lambda: limiter.peek("h"),
        lambda: slots.try_acquire("i").complete(),
        ends[0].cancel,
        lambda: ends[1].settle(0),
        ends[2].complete,
        lambda: limiter.try_acquire("j").cancel(),
        store.names,
        store.flush,
        lambda: Store(url, timeout=DEADLINE).limiter("other", "5/1m"),
    ]
    answers = []
    with away(url, whom):
        greenlets = [spawn(lambda call=call: answers.append(caught(call))) for call in calls]
        others.advance()
        for _ in range(3):
            near.acquire()  # Another limit continues to work.
        assert len(answers) <= len(calls) - 4, "nothing had to wait"
    wait_for(greenlets)
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    assert len(answers) == len(calls) and decided[0].admitted


def shared_commit(url, path):
    """Each thread of the pool once had a commit for the call that it ran."""

    def commits():
        return int(subprocess.check_output(["sqlite3", path, "select sequence from store"]))

    store, others, answers = patient(url), Others(), []
    limiter = RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600)
    limiter.peek()
    calls = [limiter.try_acquire, lambda: limiter.decide().permit, limiter.reserve]
    before = commits()
    with away(url, path):
        greenlets = [spawn(lambda call=call: answers.append(caught(call))) for call in calls * 100]
        others.advance()
        assert answers == []
    wait_for(greenlets)
    assert all(isinstance(answer, Permit) for answer in answers), answers
    # One that was on its way, one for the others, and one is due once a second.
    assert commits() - before < 12, commits() - before


def killed_while_stalled(url, whom):
    """Starts of greenlets that were killed during the call are returned."""
    store, others = patient(url), Others()
    limiter = RateLimiter(store, "jobs", max_executions=10, window_size_in_seconds=3600)
    for key in "abcd":
        limiter.peek(key)
    with away(url, whom):
        calls = [
            lambda: limiter.acquire("a"),
            lambda: limiter.try_acquire("b"),
            lambda: limiter.decide("c"),
            lambda: limiter.reserve("d"),
        ]
        greenlets = [spawn(caught, call) for call in calls]
        others.advance(10)
        for greenlet in greenlets:
            kill(greenlet)
        others.advance(10)
    stats = [limiter.stats(key) for key in "abcd"]
    until(lambda: [limiter.peek(key).remaining for key in "abcd"] == [10] * 4)
    assert all(stats)


def impatient(url, whom):
    """A wait times out while the store does not answer."""
    store = patient(url)
    limiter = RateLimiter(store, "jobs", max_executions=10, window_size_in_seconds=3600)
    limiter.peek()
    with away(url, whom):
        answers = []
        wait_for([spawn(lambda: answers.append(caught(lambda: limiter.acquire(timeout=0.05)))) for _ in range(3)])
        assert [type(answer) for answer in answers] == [AcquireTimeout] * 3, answers


# ---- forks ----


def forked(url, log):
    """A fork copies waiting greenlets. The copies join for themselves, and all starts together keep the limit."""
    store = Store(url)
    limiter = RateLimiter(store, "jobs", max_executions=5, window_size_in_seconds=0.2)

    def job():
        before = time.monotonic_ns()
        with limiter.acquire() as permit:
            after, ready = time.monotonic_ns(), permit.ready_at_monotonic
            came = before if ready is None else int(ready * SECOND)
            os.write(file, b"%d %d\n" % (came, after))

        started.append(None)

    file, started = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), []
    jobs = [spawn(job) for _ in range(20)]
    until(lambda: started)
    waiting = len(jobs) - len(started)
    assert waiting, "no waiter was left to be copied"
    if fork() == 0:
        try:
            if LIBRARY == "eventlet":
                # The child must not use the parent's selector, so it takes a new hub, without the greenlets of the old one.
                green.hubs.use_hub()
                jobs.clear()
            wait_for([*jobs, *(spawn(job) for _ in range(10))])
            Path(f"{log}.done").touch()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    wait_for(jobs)
    until(Path(f"{log}.done").exists)
    starts = [Start(*map(int, line.split()), "") for line in Path(log).read_text().splitlines()]
    assert len(starts) == 30 + (waiting if LIBRARY == "gevent" else 0), (len(starts), waiting)
    assert most_in_any_window(starts, int(0.2 * SECOND)) <= 5


if __name__ == "__main__":
    globals()[sys.argv[3]](*sys.argv[4:])
    print("done")
    sys.stdout.flush()
