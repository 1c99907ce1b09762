"""The limits of one Celery app: the limit of each task, and the hooks into Celery."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

from .. import Limiter, LimitError, Store
from .._derived import refuse
from . import _control as _control  # Registers the commands with Celery.
from ._celery import SETTING_KEYS, ImproperlyConfigured, bootsteps, signals
from ._child import limited
from ._consumer import WaitingRoom
from ._message import hand_over
from ._options import DEFAULTS, SETTINGS, TaskLimit, option_names, refuse_misspelled

#: The default of worker_limit_held: the most limited tasks that a worker holds while it fetches others. About 4 KB
#: each.
MOST_HELD = 10_000


class Limits:
    """The limits of one app, made by `install`."""

    def __init__(self, app: Any, store: Store | str | None) -> None:
        self.app = app
        self.tasks: dict[str, TaskLimit] = {}
        self._store = Store(store) if isinstance(store, str) else store
        self._policies: dict[str, str | None] = {}
        self._limiters: dict[str, Limiter] = {}
        self._is_prepared = False

    @property
    def store(self) -> Store:
        if self._store is None:
            url = self.app.conf.get("task_limit_store")
            if url is None:
                raise ImproperlyConfigured(
                    "the limits have no store: call install(app, 'sqlite:limits.db'), or set task_limit_store"
                )
            self._store = Store(url) if isinstance(url, str) else url
        return self._store

    @property
    def most_held(self) -> int:
        most = self.app.conf.get("worker_limit_held", MOST_HELD)
        if type(most) is not int or most < 1:
            raise refuse("worker_limit_held", most, "a whole number of at least 1")
        return most

    # ---- tasks ----

    def prepare(self, task: Any) -> None:
        """Reads the options of a task and wraps its body with its limit. Once per task."""
        if self.tasks.get(task.name) is not None or task.name.startswith("celery."):
            return
        refuse_misspelled(f"an option of task {task.name}", option_names(task), DEFAULTS, ("limit", "on_limit"))
        options = {name: self._option(task, name) for name in DEFAULTS}
        if options["limit"] is None and options["limit_name"] is None:
            given = [name for name in DEFAULTS if _own(task, name) is not None]
            if given:
                raise refuse(f"limit of task {task.name}", None, f"a policy or a limiter, because {given[0]} is given")
            return
        if task.rate_limit and task.rate_limit != self.app.conf.task_default_rate_limit:
            raise refuse(
                f"rate_limit of task {task.name}",
                task.rate_limit,
                "none with limit: combine policies in it, such as '10/1s + 100/1m'",
            )
        body = getattr(task, "_orig_run", task.run)
        limiter = self._limiter(task.name, options["limit"], options["limit_name"])
        limit = TaskLimit(task.name, options, limiter, body)
        self.tasks[task.name] = limit
        limited(task, limit)

    def prepare_all(self) -> None:
        """Checks the settings and prepares all tasks, once. If it raises an error, every later use of the tasks does."""
        if self._is_prepared:
            return
        self._is_prepared = True  # The tasks of an app finalize it, and so come back here.
        try:
            self._check_settings()
            for task in list(self.app.tasks.values()):
                self.prepare(task)
        except BaseException:
            self._is_prepared = False
            raise

    def _check_settings(self) -> None:
        conf = self.app.conf.finalize()
        # With a namespace, such as CELERY in Django, the names without its prefix are not Celery's.
        prefix = (conf.prefix or "").lower()
        given = (name.lower() for name in conf.without_defaults())
        names = (name.removeprefix(prefix) for name in given if name.startswith(prefix))
        begin = ("task_limit", "task_default_limit", "task_default_on_limit", "worker_limit")
        refuse_misspelled("a setting", (name for name in names if name not in SETTING_KEYS), SETTINGS, begin)

    def _option(self, task: Any, name: str) -> Any:
        value = _own(task, name)
        if value is None:
            value = self.app.conf.get(f"task_default_{name}")
        return DEFAULTS[name] if value is None else value

    def _limiter(self, task: str, limit: object, name: object) -> Callable[[], Limiter]:
        if isinstance(limit, Limiter):
            if name is not None:
                raise refuse(f"limit_name of task {task}", name, "none with a limiter, which has a name")
            self._limiters.setdefault(limit.name, limit)
            return lambda: limit
        if name is None:
            name = task
        if not isinstance(name, str):
            raise refuse(f"limit_name of task {task}", name, "a text")
        if limit is not None and not isinstance(limit, str):
            raise refuse(f"limit of task {task}", limit, "a policy such as '100/1m + 5 concurrent', or a limiter")
        known = self._policies.setdefault(name, limit)
        if limit is not None and known is not None and limit != known:
            raise refuse(f"limit of task {task}", limit, f"{known!r}, because limit {name!r} is already declared")
        if limit is not None:
            self._policies[name] = limit
            self._limiters[name] = self.store.limiter(name, limit)  # Its first use opens the store.
        return partial(self.named, name)

    def named(self, name: str) -> Limiter:
        """Returns the limiter of this name, from whichever program declared it. All tasks share the object, and so one
        line."""
        if name not in self._limiters:
            self._limiters[name] = self.store.limiter(name)
        return self._limiters[name]

    # ---- workers ----

    def waiting_room(self, consumer: Any) -> WaitingRoom:
        """Makes the waiting room of a worker's consumer. Celery starts, fills and stops it like its own token buckets."""
        self.open(consumer.pool)
        waiting_room = consumer.limit_waiting_room = WaitingRoom(consumer, self.most_held)
        held = {name: limit for name, limit in self.tasks.items() if limit.on_limit in ("hold", "retry")}
        buckets = {name: _Bucket(waiting_room, limit) for name, limit in held.items()}
        bucket_for_task = consumer.bucket_for_task

        def bucket(task: Any) -> Any:
            return buckets.get(task.name) if task.name in self.tasks else bucket_for_task(task)

        consumer.bucket_for_task = bucket
        consumer.reset_rate_limits()
        if consumer.disable_rate_limits:
            # Tasks go to the pool at once. A child that sends one back needs its message's formats.
            on_task_request = consumer.on_task_request

            def with_formats(request: Any) -> None:
                if request.name in held:
                    hand_over(request, None)
                on_task_request(request)

            consumer.on_task_request = with_formats
        return waiting_room

    def open(self, pool: Any) -> None:
        """Opens the store and peeks at each limit once, so that errors appear before the first task."""
        for limit in self.tasks.values():
            limit.limiter.peek(*limit.sample)
        if self.tasks and self.store.url == "memory:" and "prefork" in type(pool).__module__:
            raise refuse("store", self.store.url, "one that processes share, such as sqlite:limits.db, or another pool")

    def flush(self) -> None:
        """Publishes the latest counts."""
        if self._store is not None:
            with suppress(LimitError):
                self._store.flush()

    def report(self, waiting: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Returns the worker's report about its limits."""
        tasks: dict[str, list[str]] = {}
        for task, limit in self.tasks.items():
            tasks.setdefault(limit.limiter.name, []).append(task)
        return {
            name: {"policy": self._policies.get(name), "tasks": sorted(of), "waiting": waiting.get(name, {})}
            for name, of in tasks.items()
        }


def _own(task: Any, name: str) -> Any:
    """Returns an option from a task's class. Functions are not bound as methods."""
    for base in type(task).__mro__:
        if name in vars(base):
            value = vars(base)[name]
            return value.__func__ if isinstance(value, staticmethod) else value
    return None


class _Bucket:
    """Stands in for Celery's token bucket of a task. Celery only ever adds tasks to it."""

    def __init__(self, waiting_room: WaitingRoom, limit: TaskLimit) -> None:
        self._waiting_room, self._limit = waiting_room, limit

    def add(self, item: tuple[Any, int]) -> None:
        self._waiting_room.add(item[0], self._limit)

    def pop(self) -> tuple[Any, int]:
        raise IndexError  # Celery finds no task to start.

    def clear_pending(self) -> None:
        self._waiting_room.clear()


def install(app: Any, store: Store | str | None = None) -> None:
    """Adds limits to the tasks of a Celery app. store is a URL, a Store, or None for the setting `task_limit_store`.
    May be called before or after the tasks are declared."""
    if getattr(app, "limits", None) is not None:
        raise ImproperlyConfigured(f"{app!r} already has limits: call install once")
    limits = app.limits = Limits(app, store)

    task_from_fun, register_task, finalize_app = app._task_from_fun, app.register_task, app.finalize

    def from_function(function: FunctionType, *args: Any, **options: Any) -> Any:
        task = task_from_fun(function, *args, **options)
        limits.prepare(task)
        return task

    def register(task: Any, **options: Any) -> Any:
        task = register_task(task, **options)
        limits.prepare(task)
        return task

    # (Celery logs what a handler of its signal on_after_finalize raises, and goes on.)
    def finalize(auto: bool = False) -> None:
        finalize_app(auto=auto)
        limits.prepare_all()

    def leave(**_signal: Any) -> None:
        limits.flush()

    # Children of prefork end without Python's atexit functions.
    signals.worker_process_shutdown.connect(leave, weak=False)
    app._task_from_fun, app.register_task, app.finalize = from_function, register, finalize
    if app.finalized:
        limits.prepare_all()
    step = {
        "requires": ("celery.worker.consumer.tasks:Tasks",),
        "create": lambda _step, consumer: limits.waiting_room(consumer),
    }
    app.steps["consumer"].add(bootsteps.StepType("WaitingRoom", (bootsteps.StartStopStep,), step))
