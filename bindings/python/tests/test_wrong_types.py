"""A value of a wrong type is answered in our words: the parameter, the value, and what was expected. No call shows PyO3's.

The calls are found by introspection: every parameter of every public function, constructor and method, with one wrong value of each
type, and valid values for the rest.
"""

import inspect
from datetime import datetime, timezone

import pytest
import workglow_limit
from workglow_limit import (
    CompositeLimiter,
    FirstOfLimiter,
    FlowControl,
    InvalidArgument,
    LimitError,
    ManualClock,
    NullLimiter,
    Store,
)

#: One value of each type. Some are right for some parameters.
VALUES = [
    None,
    True,
    7,
    2.5,
    10**30,
    float("nan"),
    "text",
    "\ud800",
    b"bytes",
    [],
    [7],
    (7,),
    {},
    {7},
    object(),
    object,
    len,
]


def store():
    return Store("memory:")


def limiter():
    return store().limiter("jobs", "1000000/1m")


#: Valid arguments, where a parameter has no default, or where a call needs more than those. A function makes a new one.
VALID = {
    "url": "memory:",
    "store": store,
    "name": "jobs",
    "max_executions": 5,
    "window_size_in_seconds": 60,
    "max_concurrent_jobs": 5,
    "share": 3,
    "starts": 3,
    "rate": 5,
    "limiters": list,
    "limiter": NullLimiter,
    "key": "acme",
    "policy": "5/1m",
    "path": "missing.toml",
    "event": "throttled",
    "function": lambda: print,
    "by": 1,
    "duration": 1,
    "when": lambda: datetime.now(timezone.utc),
    "place": "",
    "text": "",
    "actual": 1,
    "permit": lambda: limiter().acquire(),
}
IN_STORE = ("ConcurrencyLimiter", "DelayLimiter", "EvenlySpacedRateLimiter")
NEEDED = {
    "RateLimiter": {"max_executions", "window_size_in_seconds"},
    "RateLimiter(windows)": set(),
    "FlowControl": {"rate"},
    "ConcurrencyLimiter(lease)": {"store", "name"},
    **{f"{name}(name)": {"store"} for name in IN_STORE},
    **{f"{name}(store)": {"name"} for name in IN_STORE},
}

#: How the objects are made whose methods are called.
OBJECTS = {
    "Store": store,
    "Limiter": limiter,
    "CompositeLimiter": lambda: CompositeLimiter([]),
    "FirstOfLimiter": lambda: FirstOfLimiter([limiter()]),
    "ManualClock": ManualClock,
    "FlowControl": lambda: FlowControl("acme", rate=5),
    "Permit": lambda: limiter().acquire(),
    "Snapshot": lambda: store().snapshot(),
    "Decision": lambda: limiter().decide(),
    "Stats": lambda: limiter().stats(),
}


def calls():
    """Yields the name of each public call, and a function that makes what is called."""
    for name in workglow_limit.__all__:
        value = getattr(workglow_limit, name)
        if inspect.isclass(value) and not issubclass(value, Exception) and value.__module__ == "workglow_limit":
            yield name, lambda value=value: value
            for method in vars(value):
                if method[0] != "_" and callable(getattr(value, method)):
                    yield (
                        f"{name}.{method}",
                        lambda name=name, value=value, method=method: getattr(
                            OBJECTS.get(name, lambda: value)(), method
                        ),
                    )
        elif inspect.isbuiltin(value):
            yield name, lambda value=value: value


def parameters():
    for name, made in calls():
        try:
            signature = inspect.signature(made())
        except ValueError:  # A class that programs do not make.
            continue
        for parameter in signature.parameters:
            yield pytest.param(name, made, signature, parameter, id=f"{name}({parameter})")


PARAMETERS = list(parameters())


def test_the_calls_are_found():
    found = {case.id for case in PARAMETERS}
    assert len(found) > 120
    some = (
        "RateLimiter(store)",
        "RateLimiter(name)",
        "Limiter.try_acquire(key)",
        "Permit.settle(actual)",
        "doctor(url)",
    )
    assert set(some) <= found


@pytest.mark.parametrize("name, made, signature, parameter", PARAMETERS)
def test_a_wrong_type_is_answered_in_our_words(name, made, signature, parameter):
    of_all = {one.name for one in signature.parameters.values() if one.default is one.empty}
    needed = of_all | NEEDED.get(f"{name}({parameter})", NEEDED.get(name, set()))
    is_optional = signature.parameters[parameter].default is None
    for value in VALUES[is_optional:]:
        arguments = {one: VALID[one] for one in needed if one != parameter}
        arguments = {one: valid() if callable(valid) else valid for one, valid in arguments.items()} | {
            parameter: value
        }
        given = [arguments.pop(one.name) for one in signature.parameters.values() if one.kind is one.POSITIONAL_ONLY]
        try:
            answer = made()(*given, **arguments)
        except (TypeError, InvalidArgument) as error:
            if name == "Store.load" and isinstance(error, InvalidArgument):
                continue  # A right type. It names the file, and the line if there is one.
            assert str(error).startswith(f"{parameter} is ") and ": expected " in str(error), (value, error)
            if isinstance(error, TypeError):  # Of several values it quotes the wrong one.
                values = value if isinstance(value, (str, bytes, list, tuple, set)) else ()
                assert any(repr(one)[:20] in str(error) for one in (value, *values)), (value, error)
        except LimitError:
            pass  # A right type, and nothing of that name.
        else:
            if hasattr(answer, "close"):
                answer.close()  # It was not awaited.
