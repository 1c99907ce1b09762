"""Places that travel between processes of all languages as texts: each starts one job, once."""

import select
import time
from itertools import cycle, permutations, product

import pytest
from conftest import LANGUAGES, PATIENCE, most_in_any_window, most_since, ns
from workglow_limit import RateLimiter, Store


class Job:
    """A job that starts with a place, or with one that the place was exchanged for."""

    def __init__(self, number):
        self.is_late = number % 2 == 1
        self.is_twice = number % 4 >= 2
        self.is_void = False  # whether its place no longer counts, at any time
        self.answers = []

    def goes_on_with(self, text, wait):
        """Sets its place, which is ready at `ready` at the latest."""
        self.text, self.ready = text, time.monotonic() + float(wait)


class Jobs:
    """160 of them, and twelve members that present their places."""

    JOBS = 160
    LIMIT, LOWER = 80, 40
    WINDOW = 1  # seconds
    GRACE = 0.3
    GATE = 1.5

    def __init__(self, gather, folder):
        self.store = Store(f"sqlite:{folder}/limits.db")
        self.limiter = self.declare(self.LIMIT)
        self.members = gather(LANGUAGES * 4, self.store, "jobs")
        self.idle = list(self.members)
        self.busy = {}  # which job each member is presenting
        self.done = 0
        self.jobs = [Job(number) for number in range(self.JOBS)]
        for job, member in zip(self.jobs, cycle(self.members)):
            job.goes_on_with(*self.taken(member.ask("reserve", self.GRACE)))
        self.waiting = list(self.jobs)

    def declare(self, limit):
        limiter = RateLimiter(self.store, "jobs", max_executions=limit, window_size_in_seconds=self.WINDOW)
        assert limiter.peek().limit == limit
        return limiter

    @staticmethod
    def taken(answer):
        answer, text, wait = answer
        assert answer == "place"
        return text, wait

    def present(self):
        """Gives the jobs that are due to idle members; those that are presented twice to two at once."""
        now = time.monotonic()
        for job in sorted(self.waiting, key=lambda job: job.ready):
            due = job.ready + self.GRACE if job.is_late else job.ready - 0.02
            presenters = 1 + job.is_twice
            if due <= now and len(self.idle) >= presenters:
                self.waiting.remove(job)
                for _ in range(presenters):
                    member = self.idle.pop(0)
                    self.busy[member] = job
                    member.send("present", job.text)

    def conclude(self, job, member):
        """Checks the answers of all members that presented a job's place."""
        started = [answer for answer in job.answers if answer[0] == "started"]
        places = [answer for answer in job.answers if answer[0] == "place"]
        assert len(started) + len(places) == len(job.answers) and len(started) <= 1, job.answers
        assert not (started and (job.is_late or job.is_void)), "an invalid place started"
        job.answers.clear()
        if started:
            self.done += 1
        else:
            job.is_late = job.is_void = False
            job.goes_on_with(*self.taken(places.pop()))
            self.waiting.append(job)
        for _, text, _ in places:
            assert member.ask("cancel", text) == ["done"]

    def work_until(self, done):
        deadline = time.monotonic() + PATIENCE
        while self.done < done:
            assert time.monotonic() < deadline
            self.present()
            readable, _, _ = select.select(list(self.busy), [], [], 0.005)
            for member in readable:
                job = self.busy.pop(member)
                job.answers.append(member.receive())
                if job not in self.busy.values():
                    self.conclude(job, member)
                self.idle.append(member)


def test_places_start_once_in_any_process_at_any_time(gather, tmp_path):
    # The first half of the places is ready at once, the other half a window later. When 60 jobs are done, those of the
    # first half that were late are waiting again, and most of the second half is about to be presented.
    jobs = Jobs(gather, tmp_path)
    jobs.work_until(60)

    gated = time.monotonic_ns()
    jobs.limiter.pause(jobs.GATE)
    closed = time.monotonic_ns()
    jobs.work_until(100)

    jobs.declare(jobs.LOWER)
    lowered = time.monotonic_ns()
    for job in jobs.waiting:
        job.is_void = True
    jobs.work_until(jobs.JOBS)

    starts = [start for member in jobs.members for start in member.starts()]
    assert len(starts) == jobs.JOBS
    assert {start.member for start in starts} == set(LANGUAGES)
    assert most_in_any_window(starts, ns(jobs.WINDOW)) <= jobs.LIMIT
    assert most_since(starts, lowered, ns(jobs.WINDOW)) <= jobs.LOWER
    assert not [start for start in starts if closed <= start.a and start.b < gated + ns(jobs.GATE)]
    # Nothing was lost: once all starts have left the window, the whole limit is free again.
    time.sleep(jobs.WINDOW + jobs.GRACE)
    assert jobs.limiter.peek(weight=0).remaining == jobs.LOWER


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:{tmp_path}/limits.db")


@pytest.mark.parametrize("how", ["complete", "cancel"])
def test_a_place_is_taken_presented_and_ended_in_three_languages(how, store, gather):
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=0.2)
    limiter.peek()
    members = dict(zip(LANGUAGES, gather(LANGUAGES, store, "jobs")))
    for one, two, three in permutations(members.values()):
        limiter.clear()
        limiter.try_acquire()
        # The last one has to wait, unless the machine is so busy that the window is over by now.
        answer, place, wait = one.ask("reserve", 60)
        assert answer == "place" and float(wait) >= 0
        answer, start = two.ask("present", place)
        assert answer == "started"
        assert three.ask(how, start) == ["done"]
        # It counts from the end of its grace on, unless it was cancelled.
        assert limiter.can_proceed() == (how == "cancel")
        # And it was used up.
        answer, fresh, _ = three.ask("present", place)
        assert answer == "place" and fresh != place
        assert one.ask("cancel", fresh) == ["done"]


def test_a_composites_place_travels_between_languages(store, gather):
    limiter = store.limiter("jobs", "2/200ms + 30/1s + 2 concurrent")
    limiter.peek()
    members = dict(zip(LANGUAGES, gather(LANGUAGES, store, "jobs")))
    for one, two, three in permutations(members.values()):
        limiter.clear()
        held, other = limiter.try_acquire(), limiter.try_acquire()
        answer, place, _ = one.ask("reserve", 60)
        assert answer == "place"
        other.complete()
        assert two.ask("present", place) == ["started", "-"]
        # It is used up for every process. It is exchanged as soon as another unit is free.
        held.complete()
        for late in one, three:
            answer, fresh, _ = late.ask("present", place)
            assert answer == "place" and fresh != place
            assert late.ask("cancel", fresh) == ["done"]
        # And the start still counts: its job runs.
        assert one.ask("cancel", place) == ["done"]
        time.sleep(0.3)
        assert limiter.peek(weight=0).remaining == 1


def test_the_text_of_another_limit_is_refused(store, gather):
    limiters = [RateLimiter(store, name, max_executions=5, window_size_in_seconds=60) for name in ("jobs", "others")]
    for limiter in limiters:
        limiter.peek()
    others = gather(LANGUAGES, store, "others")
    for member, other in product(gather(LANGUAGES, store, "jobs"), others):
        _, text, _ = member.ask("reserve", "-")
        for verb in "present", "acquire-place", "complete", "cancel":
            assert other.ask(verb, text) == ["error", "foreign_permit"]
            assert other.ask(verb, "no-text") == ["error", "invalid_argument"]
        assert member.ask("cancel", text) == ["done"]
    assert [limiter.peek(weight=0).remaining for limiter in limiters] == [5, 5]


def test_a_text_of_an_earlier_lane_is_exchanged(store, gather, tmp_path):
    limiter = RateLimiter(store, "jobs", max_executions=9, window_size_in_seconds=1)
    limiter.peek()
    before = gather(LANGUAGES, store, "jobs")
    texts = [member.ask("reserve", 60)[1] for member in before]
    (tmp_path / "limits.db-lane").unlink()
    after = gather(LANGUAGES, store, "jobs")
    for text, member in zip(texts, after):
        # It was ready, but in a lane that no longer exists.
        answer, fresh, _ = member.ask("present", text)
        assert answer == "place" and fresh != text
        assert member.ask("present", fresh)[0] == "started"
        # A caller that waits with it has to wait for another one, too.
        assert member.ask("acquire-place", text)[0] == "started"
    # Processes with the old lane have noticed.
    for text, member in zip(texts, before):
        assert member.ask("present", text)[0] == "place"
    assert limiter.peek(weight=0).remaining == 0
