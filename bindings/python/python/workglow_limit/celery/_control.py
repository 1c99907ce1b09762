"""Remote control: commands that change, pause and show limits while workers run, such as limit_set.

Every worker that receives a command executes it. That is harmless, as all write the same to the same store.
"""

from __future__ import annotations

from typing import Any

from .. import LimitError
from ._celery import control_command, inspect_command, nok
from ._celery import rate_limit as celerys


def _limits(state: Any) -> Any:
    return getattr(state.app, "limits", None)


def _reply(state: Any, name: str, result: str, call: Any) -> dict[str, str]:
    limits, waiting_room = _limits(state), getattr(state.consumer, "limit_waiting_room", None)
    if limits is None:
        return {"error": "this worker's app has no limits: install(app, …)"}
    try:
        call(limits)
    except (LimitError, TypeError, ValueError) as error:
        return {"error": str(error)}
    if waiting_room is not None:
        waiting_room.renew(name)
    return {"ok": f"limit {name} {result}"}


def _of(key: str | None) -> str:
    return "" if key is None else f" for {key}"


@control_command(  # type: ignore[untyped-decorator]
    args=[("name", str), ("policy", str), ("key", str)], signature="<name> <policy> [key]"
)
def limit_set(state: Any, name: str, policy: str, key: str | None = None, **_options: Any) -> dict[str, str]:
    """Override the policy of a limit, or of one of its keys, until limit_lift."""
    return _reply(state, name, f"is {policy}{_of(key)}", lambda limits: limits.store.override(name, policy, key))


@control_command(args=[("name", str), ("key", str)], signature="<name> [key]")  # type: ignore[untyped-decorator]
def limit_lift(state: Any, name: str, key: str | None = None, **_options: Any) -> dict[str, str]:
    """Restore the policy that a limit's code declares, or of one of its keys the limit's."""
    return _reply(state, name, f"is as declared{_of(key)}", lambda limits: limits.store.lift(name, key))


@control_command(  # type: ignore[untyped-decorator]
    args=[("name", str), ("seconds", float), ("key", str)], signature="<name> <seconds> [key]"
)
def limit_pause(state: Any, name: str, seconds: float, key: str | None = None, **_options: Any) -> dict[str, str]:
    """Stop all starts of a limit, or of one of its keys, for some seconds."""
    return _reply(state, name, f"pauses for {seconds} s", lambda limits: limits.named(name).pause(seconds, key))


@control_command(  # type: ignore[untyped-decorator]
    name="rate_limit",
    args=[("task_name", str), ("rate_limit", str)],
    signature="<task_name> <rate_limit (e.g., 5/s | 5/m | 5/h)>",
)
def rate_limit_of_celery(state: Any, task_name: str, rate_limit: str, **options: Any) -> Any:
    """Tell worker(s) to modify Celery's own rate limit for a task by type."""
    limits = _limits(state)
    limit = limits and limits.tasks.get(task_name)
    if limit:
        name = limit.limiter.name
        return nok(
            f"rate_limit has no effect on {task_name}, which has the limit {name!r}: use limit_set {name} <policy>"
        )
    return celerys(state, task_name, rate_limit, **options)


@inspect_command()  # type: ignore[untyped-decorator]
def limits(state: Any, **_options: Any) -> dict[str, Any]:
    """The limits of a worker's tasks, and the number of tasks that wait here, by key."""
    installed = _limits(state)
    if installed is None:
        return {}
    waiting_room = getattr(state.consumer, "limit_waiting_room", None)
    return dict(installed.report(waiting_room.waiting() if waiting_room else {}))
