"""A Python member: member.py STORE NAME FOLDER TIMEOUT_SECONDS ON_ERROR DURABILITY. Commands as in conftest.py."""

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from workglow_limit import AcquireTimeout, LimitError, Store, Unsupported
from workglow_limit.http import heed

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples/fleet"))
from evidence import Recorder

url, name, folder, timeout, on_error, durability = sys.argv[1:]
store = Store(url, timeout=float(timeout), on_error=on_error, durability=durability)
limiter = store.limiter(name)
recorder = Recorder(folder, "python")
AT_ONCE = SimpleNamespace(ready_at_monotonic=None)  # the result of a call that did not wait


def say(*words):
    print(*words, flush=True)


def seconds(word):
    return None if word == "-" else float(word)


def text(start):
    """Returns the text of a permit; the start of a composite has none, because it belongs to one process."""
    try:
        return start.to_text()
    except Unsupported:
        return "-"


def place(permit):
    return "place", permit.to_text(), permit.wait


def present(given):
    """Waits while it is too early. Returns the result: a start, or another place."""
    while True:
        asked = time.monotonic_ns()
        permit = limiter.present(given)
        if permit.started:
            recorder.start(asked, AT_ONCE)
            return "started", text(permit)
        if permit.to_text() != given:
            return place(permit)
        time.sleep(permit.wait)


def queue(grace):
    """Takes a place, reports it, and starts with it when it is ready."""
    permit, decisions, sleeps = limiter.reserve(grace=seconds(grace)), 1, 0
    say(*place(permit))
    while not permit.started:
        if wait := permit.wait:
            time.sleep(wait)
            sleeps += 1
        asked = time.monotonic_ns()
        ready = permit
        permit = limiter.present(permit)
        decisions += 1
    recorder.start(asked, ready)
    return "started", text(permit), decisions, sleeps


def start(permit, asked):
    if permit is None:
        return ("denied",)
    recorder.start(asked, permit)
    return "started", text(permit)


def answer(verb, *words):
    asked = time.monotonic_ns()
    match verb, *words:
        case ("try",):
            return start(limiter.try_acquire(), asked)
        case "acquire", timeout, grace:
            return start(limiter.acquire(timeout=seconds(timeout), grace=seconds(grace)), asked)
        case "acquire-place", given:
            return start(limiter.acquire(place=given), asked)
        case "reserve", grace:
            return place(limiter.reserve(grace=seconds(grace)))
        case "queue", grace:
            return queue(grace)
        case "present", given:
            return present(given)
        case (("complete" | "cancel"), given):
            getattr(limiter.permit(given), verb)()
            return ("done",)
        case "fetch", url:
            import requests  # takes longer than everything else

            return "heeded", f"{heed(limiter, requests.get(url)):g}"
        case ("failures",):
            return ("failures", store.failures)


# A shell that starts this program in the background makes it inherit an ignored signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
limiter.peek(weight=0)
say("ready")
for line in sys.stdin:
    try:
        result = answer(*line.split())
    except AcquireTimeout:
        result = ("denied",)
    except LimitError as error:
        result = ("error", error.code)
    except KeyboardInterrupt:
        result = ("interrupted",)
    say(*result)
