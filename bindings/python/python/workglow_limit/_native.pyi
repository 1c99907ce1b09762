from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar, final, overload
from weakref import ref

from typing_extensions import Self, disjoint_base

from ._custom import CustomLimiter, JobLimiter
from ._loops.waiters import Waiters

_Duration: TypeAlias = float | timedelta  # A number of seconds.
# A mapping has the keys or weights of parts of a composite, by their names.
_Key: TypeAlias = str | Mapping[str, str | None] | None
_Weight: TypeAlias = int | Mapping[str, int]
_KeyOf: TypeAlias = str | Callable[..., object] | Mapping[str, str | Callable[..., object] | None]
_WeightOf: TypeAlias = int | str | Callable[..., _Weight] | Mapping[str, int | str | Callable[..., int]]
_Happening: TypeAlias = Literal["throttled", "unknown_limit", "store_error"]
_Kind: TypeAlias = Literal[
    "rate",
    "concurrency",
    "delay",
    "evenly-spaced",
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window-counter",
    "shared-rate",
    "shared-concurrency",
    "shared-delay",
    "shared-evenly-spaced",
    "shared-token-bucket",
    "shared-fixed-window",
    "shared-sliding-window-counter",
]
_Jitter: TypeAlias = Literal["scaled", "full", "equal", "none"]

_Child: TypeAlias = Limiter | CustomLimiter | JobLimiter
_P = ParamSpec("_P")
_R = TypeVar("_R")

__all__ = [
    "Acquisition",
    "AsyncCall",
    "CompositeLimiter",
    "ConcurrencyLimiter",
    "Decision",
    "DelayLimiter",
    "EvenlySpacedRateLimiter",
    "Finding",
    "FirstOfLimiter",
    "FixedWindowLimiter",
    "FlowControl",
    "GrantSnapshot",
    "HeadSnapshot",
    "HolderSnapshot",
    "KeySnapshot",
    "LeakyBucketLimiter",
    "LimitEvent",
    "LimitSnapshot",
    "Limiter",
    "Line",
    "LineSnapshot",
    "ManualClock",
    "NullLimiter",
    "Permit",
    "PermitStacks",
    "Pool",
    "Problem",
    "ProcessSnapshot",
    "RateLimiter",
    "SlidingWindowCounterLimiter",
    "Snapshot",
    "Stats",
    "Store",
    "TenantSnapshot",
    "TokenBucketLimiter",
    "Usage",
    "Waiter",
    "WaitingSnapshot",
    "Waits",
    "__version__",
    "call_in_thread",
    "doctor",
    "metrics_content_type",
    "postgres_schema",
    "run_command",
]

__version__: str

@final
class ManualClock:
    """A clock for tests. It moves only when advance is called. Pass it as clock to a Store, or to a limiter that has no
    store."""

    def __new__(cls) -> Self: ...
    def advance(self, by: _Duration) -> None:
        """Moves the clock forward by seconds or a timedelta. It cannot move back."""

    def now(self) -> float:
        """Returns the time since the clock was created, in seconds."""

    def __reduce__(self) -> NoReturn: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object) -> Self: ...

@final
class Store:
    """The storage of limits: "memory:" (this process), "sqlite:PATH" (this machine), or "redis://HOST",
    "redis+unix://PATH" and "postgres://HOST/DATABASE" (a server that machines share). A pathlib.Path or other
    os.PathLike means sqlite: with that path. A path that begins with "~/" is in the home directory.

    The constructor opens nothing; the first use or open() does. So a store can be created at import, before workers are
    forked. timeout is the longest time that a call waits for a rare operation (opening, a new limit), in seconds or as
    a timedelta. mode is the file mode of new files.

    on_error is the answer of a decision when the store fails: "raise" (the error), "deny", or "admit" (without counting
    the start). failures counts such decisions. durability limits what a power cut may erase from the record of starts;
    erased units count as spent. It is "budget" (up to 5 % of a limit) or "commit" (nothing: each start is written
    before its call returns). max_size is the size in bytes up to which this process lets the store's memory, or its
    lane, grow: 1 MiB to 4 GiB. None means a quarter of the memory of the machine, or of the container if that has less.

    A store that processes share can be pickled, and so can its limiters. The pickle contains the address with its
    password. A copy is the store itself.
    """

    def __new__(
        cls,
        url: str | PathLike[str],
        *,
        timeout: _Duration = 5.0,
        mode: int = 0o600,
        on_error: Literal["raise", "deny", "admit"] = "raise",
        durability: Literal["budget", "commit"] = "budget",
        clock: ManualClock | None = None,
        max_size: int | None = None,
    ) -> Self: ...
    def open(self) -> None:
        """Opens the store now instead of at the first use. Creates its files if there are none."""

    def open_async(self) -> Coroutine[None, None, None]:
        """As open, for event loops: the loop runs meanwhile. A program's synchronous calls wait only briefly in a loop,
        so await this before the first of them."""

    def names(self) -> list[str]:
        """Returns the names that are declared in this store, in order, including those of limiters made with this
        object and not used yet."""

    def override(self, name: str, policy: str, key: str | None = None) -> None:
        """Overrides the policy that programs declare under this name with an operator's policy, such as "200/1m" or
        "100/1m + 5/1s". It holds at once, in all processes, until lift. In a limit of several kinds each policy
        overrides the part of its kind. With a key it holds for that key only, such as a tenant's plan; the key need not
        have been used yet.
        """

    def lift(self, name: str, key: str | None = None) -> None:
        """Removes the operator's policy, so that the policy declared last holds again. With a key it removes that key's
        own policy, so that the limit's holds for the key again. A no-op if there is none."""

    def override_async(self, name: str, policy: str, key: str | None = None) -> Coroutine[None, None, None]:
        """As override, for event loops."""

    def lift_async(self, name: str, key: str | None = None) -> Coroutine[None, None, None]:
        """As lift, for event loops."""

    def share(self, name: str, key: str, share: int) -> None:
        """Sets the share of a tenant of a shared limit, such as "500/1m shared", in all processes: 1 to 1000. While
        tenants wait, one with share 3 gets three starts where one with 1 gets one. It survives restarts, and 1 is the
        default. The share of a call has precedence.
        """

    def share_async(self, name: str, key: str, share: int) -> Coroutine[None, None, None]:
        """As share, for event loops."""

    def forget(self, name: str) -> None:
        """Removes the declaration of this name, including operators' policies, so that another kind of limiter can be
        declared. Limiters in use then raise KindMismatch. If the same kind is declared again, it keeps its state."""

    def close(self) -> None:
        """Ends the use of this object and its limiters in this process. Every call that would start, wait, read or
        change something then raises StoreClosed, whatever on_error says, and so do the waits of threads, tasks and
        greenlets. Permits can still be completed, cancelled, settled and renewed. Other Store objects are not affected,
        even at the same address.

        It writes the admitted starts that are not in the database yet, and closes the connections to a server. If the
        starts cannot be written within the timeout, it raises StoreError, and the store is closed nevertheless. Closing
        a store twice is a no-op. "with Store(...) as store" closes it at the end.
        """

    def close_async(self) -> Coroutine[None, None, None]:
        """As close, for event loops: the loop runs meanwhile."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...
    def flush(self) -> None:
        """Writes the admitted starts that are not in the database yet. A no-op for "memory:"."""

    def verify(self, *, repair: bool = False) -> list[Problem]:
        """Checks the store's files and returns their problems; an empty list if there are none. With repair it also
        repairs what it can: it removes unreadable rows from the database and recreates an inconsistent lane. It reads
        the whole database, which delays starts that wait for a commit.
        """

    def snapshot(self, *, keys: int = 10, show_keys: bool = False) -> Snapshot:
        """Returns the current state of the store and of all its limits. A snapshot takes part in no decision and makes
        none slower. keys is the largest number of keys per limit, the busiest first (0 to 1000). With show_keys keys
        appear as their texts, which can be secrets; otherwise as ids.

        In an event loop use await asyncio.to_thread(store.snapshot).
        """

    def line(self, name: str, key: str | None = None) -> LineSnapshot:
        """Returns who has the units of a limit and key, and who waits for them: whose turn is next, and since when. It
        covers all processes of a "sqlite:" store. For a limit that tenants share, no key means all of them. A part of
        several limits has a name of its own, such as "openai/tokens". It takes part in no decision and makes none
        slower. A limit on a server raises Unsupported. When one more start would begin says Limiter.forecast().

        In an event loop use await asyncio.to_thread(store.line, name).
        """

    def metrics(
        self, *, keys: int = 10, show_keys: bool = False, format: Literal["openmetrics", "prometheus"] = "openmetrics"
    ) -> str:
        """Returns the snapshot as text for Prometheus and compatible readers: "openmetrics" (OpenMetrics 1.0), or
        "prometheus" (the text format 0.0.4) for older readers. metrics_content_type() returns the Content-Type of each.
        All processes of a "sqlite:" store report the same values, so scrape one process per machine and do not add them
        up. On a server, each process reports its own counts.

        In an event loop use await asyncio.to_thread(store.metrics).
        """

    @property
    def failures(self) -> int:
        """The number of decisions of this process that failed because of the store, whatever on_error answered."""

    @property
    def url(self) -> str:
        """The store's address as given, without a password."""

    @overload
    def limiter(self, name: str, policy: str | None = None) -> Limiter:
        """Returns a limiter by name. With a policy, such as "100/1m + 5 concurrent", its first use declares the policy
        under the name. Without a policy it returns a limiter for the declared limit, of any kind; this opens the store,
        and an unknown name raises UnknownLimit. A FlowControl, whose key is the name, replaces both arguments.
        """

    @overload
    def limiter(self, name: FlowControl, policy: None = None) -> Limiter: ...
    def load(self, path: str | PathLike[str]) -> list[str]:
        """Declares all limits of a TOML file, or none if one is invalid. Returns their names."""

    def on(self, event: _Happening, function: Callable[[LimitEvent], object]) -> Callable[[], None]:
        """Calls a function with a LimitEvent at each event of any limiter of this object in this process: "throttled"
        (a start was denied or has to wait), "unknown_limit" or "store_error". Returns a function that removes it.

        An exception of the function goes to sys.unraisablehook and has no effect on the decision.
        """

    def __reduce__(self) -> tuple[Any, ...]: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object) -> Self: ...

@final
class FlowControl:
    """The flow of the jobs of one key: at most rate starts per period (seconds or a timedelta), and at most parallelism
    jobs at the same time. Either may be omitted. Store.limiter makes a limiter of it, with the key as its name."""

    def __new__(
        cls,
        key: str,
        *,
        rate: int | None = None,
        period: _Duration = 1.0,
        parallelism: int | None = None,
    ) -> Self: ...
    @property
    def key(self) -> str:
        """The name of the limit."""

    @property
    def rate(self) -> int | None:
        """Starts per period."""

    @property
    def period(self) -> float:
        """The period of the rate, in seconds."""

    @property
    def parallelism(self) -> int | None:
        """Jobs at the same time."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]: ...

@final
class LimitEvent:
    """An event, as a hook gets it: "throttled", "unknown_limit" or "store_error", with its limit and key."""

    @property
    def event(self) -> _Happening:
        """The kind of the event: "throttled", "unknown_limit" or "store_error"."""

    @property
    def limit(self) -> str:
        """The name of the limit. In a composite, the limit that denied."""

    @property
    def key(self) -> str | None:
        """The key; None if the call had no key."""

    @property
    def wanted(self) -> int:
        """The units that were requested."""

    @property
    def granted(self) -> int:
        """The units that were granted at once."""

    @property
    def wait(self) -> float:
        """The seconds after which the start may be admitted; 0.0 for other events."""

    @property
    def error(self) -> Exception | None:
        """The exception; None if there is none, or if the store's on_error answered instead."""

@final
class Finding:
    """A server setting that affects limits there, from doctor()."""

    @property
    def severity(self) -> Literal["note", "warning", "danger"]:
        """The severity: "danger" (limits may be exceeded, or cannot be used), "warning" or "note"."""

    @property
    def what(self) -> str:
        """The consequence."""

    @property
    def setting(self) -> str:
        """The server's name of the setting."""

    @property
    def value(self) -> str:
        """The value of the setting; empty if it could not be read."""

    @property
    def instead(self) -> str:
        """The recommended value or action."""

def call_in_thread(of: Limiter | Permit | AsyncCall | Line | int, function: Callable[[], object]) -> None:
    """Calls a function in one of the threads."""

def doctor(url: str) -> list[Finding]:
    """Returns the settings of a server that endanger limits there, the worst first; an empty list if there are none.
    Always empty for "memory:" and "sqlite:PATH", whose files Store.verify() checks. On Redis it briefly writes a key of
    its own to test its permissions.
    """

def metrics_content_type(format: Literal["openmetrics", "prometheus"] = "openmetrics") -> str:
    """Returns the Content-Type of a format of Store.metrics()."""

def postgres_schema() -> str:
    """Returns the SQL that creates the schema workglow_limit for limits on Postgres, for your own migrations. It is not
    needed if the program's role may create schemas, because the first call creates it then. Running it again changes
    nothing.
    """

def run_command(arguments: list[str]) -> int:
    """Runs the command and returns its exit code. The first argument is the program's name. Ctrl-C ends the process
    from then on, so nothing else should run in it."""

@final
class Problem:
    """A problem of a store's files, from Store.verify()."""

    @property
    def found(self) -> str:
        """The description of the problem."""

    @property
    def repaired(self) -> bool:
        """Whether it was repaired."""

@final
class Stats:
    """The counts of a limit or of one key, over all processes that share it."""

    @property
    def admitted(self) -> int:
        """Starts that were admitted, at once or after a wait."""

    @property
    def denied(self) -> int:
        """Attempts that were denied."""

    @property
    def units_wanted(self) -> int:
        """The units that were requested."""

    @property
    def units_granted(self) -> int:
        """The units that were granted."""

    @property
    def waited(self) -> int:
        """Starts that had to wait for a place."""

    @property
    def wait_time(self) -> float:
        """The total time that they waited, in seconds."""

    @property
    def cancelled(self) -> int:
        """Permits and places that were cancelled."""

    @property
    def store_errors(self) -> int:
        """Decisions that failed because of the store, whatever on_error answered."""

    @property
    def policy_changes(self) -> int:
        """The number of policy changes."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Snapshot:
    """The state of a store at one time, from Store.snapshot(). Durations are in seconds."""

    @property
    def at(self) -> datetime:
        """The time of the snapshot by the wall clock, in UTC."""

    @property
    def store(self) -> str:
        """The store's address, without a password."""

    @property
    def limits(self) -> tuple[LimitSnapshot, ...]:
        """A LimitSnapshot per limit, by name. The parts of a composite are called "name/KIND"."""

    @property
    def counts_all_processes(self) -> bool:
        """Whether the counts cover all processes that share the store. On a server they cover this process only."""

    @property
    def processes(self) -> tuple[ProcessSnapshot, ...]:
        """A ProcessSnapshot per process of this machine that uses the store. Empty for "memory:" and servers, which do
        not record processes."""

    @property
    def ledger_lag(self) -> float:
        """The age of the oldest admitted start that is not yet in the database. 0 if all are."""

    @property
    def lane_bytes(self) -> int:
        """The size of the lane in bytes; 0 without a lane."""

    @property
    def used_bytes(self) -> int:
        """The memory of the store that is in use, in bytes; 0 on a server."""

    @property
    def max_bytes(self) -> int:
        """The size in bytes up to which this process lets the store grow (max_size); 0 on a server."""

    @property
    def failures(self) -> int:
        """The number of decisions of this process that failed because of the store."""

@final
class LimitSnapshot:
    """The state of a limit."""

    @property
    def name(self) -> str:
        """The name of the limit."""

    @property
    def kind(self) -> _Kind:
        """The kind of the limit: "rate", "concurrency", "delay", "evenly-spaced", "token-bucket", "leaky-bucket",
        "fixed-window" or "sliding-window-counter"; with "shared-" before it if tenants share the limit."""

    @property
    def policy(self) -> str:
        """The policy in force."""

    @property
    def declared(self) -> str:
        """The policy that programs declare."""

    @property
    def override(self) -> str | None:
        """An operator's override; None without one."""

    @property
    def overridden_by(self) -> str | None:
        """What has put the override there: "operator", or "headers of api.example.com" from which programs learned it;
        None without one."""

    @property
    def usage(self) -> tuple[Usage, ...]:
        """A Usage per window, for the key that uses most of the limit. There is at least one; the first is the fullest."""

    @property
    def fullest(self) -> str | None:
        """The key of usage: its text with show_keys, otherwise "#" and its id. None for the limit without a key."""

    @property
    def near(self) -> bool:
        """Whether more than 80 % of the limit is used."""

    @property
    def peak(self) -> int:
        """The most units of one key in use at the same time, within about the last minute."""

    @property
    def retry_after(self) -> float:
        """The time until the fullest key would admit a start of weight 1."""

    @property
    def paused_for(self) -> float:
        """The time until the gate opens; 0 without a gate."""

    @property
    def waiting(self) -> int:
        """The number of waiters in all processes."""

    @property
    def waits(self) -> Waits:
        """The number of starts that had to wait, by the length of the wait."""

    @property
    def places_lost(self) -> int:
        """The number of places that were lost because their owners came too late."""

    @property
    def stats(self) -> Stats:
        """The counts of the limit."""

    @property
    def keys(self) -> int:
        """The number of known keys."""

    @property
    def bytes(self) -> int:
        """The memory that its keys take, in bytes; 0 on a server."""

    @property
    def spare_bytes(self) -> int:
        """The memory that further keys may take before new ones are refused, in bytes; 0 on a server."""

    @property
    def hot_keys(self) -> tuple[KeySnapshot, ...]:
        """A KeySnapshot per key, busiest first: at most as many as requested."""

    @property
    def tenants(self) -> tuple[TenantSnapshot, ...]:
        """A TenantSnapshot per tenant of a shared limit that waits, the next one first, and then per tenant for which a
        share is kept."""

    @property
    def grants(self) -> GrantSnapshot | None:
        """The server's grants that this process holds. None if no server grants units."""

@final
class Usage:
    """The usage of a window, a bucket or a concurrency limit."""

    @property
    def limit(self) -> int:
        """The units that are allowed."""

    @property
    def used(self) -> int:
        """The units that are in use."""

    @property
    def window(self) -> float | None:
        """The length of the window in seconds. None for a concurrency limit."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Waits:
    """A histogram of the starts that had to wait, by the length of the wait."""

    @property
    def bounds(self) -> list[float]:
        """The longest wait of each class but the last, in seconds."""

    @property
    def counts(self) -> list[int]:
        """The number of starts in each class. The last class has all longer waits."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class KeySnapshot:
    """The state of one key."""

    @property
    def key(self) -> str:
        """The text of the key with show_keys (a long one is shortened), otherwise "#" and its id, which is stable while
        the store exists."""

    @property
    def override(self) -> str | None:
        """The key's own policy; None without one."""

    @property
    def usage(self) -> tuple[Usage, ...]:
        """A Usage per window. The first is the fullest."""

    @property
    def retry_after(self) -> float:
        """The time until a start of weight 1 would be admitted."""

    @property
    def paused_for(self) -> float:
        """The time until the gate opens; 0 without a gate."""

    @property
    def stats(self) -> Stats:
        """The counts of the key."""

@final
class TenantSnapshot:
    """The state of one tenant of a shared limit."""

    @property
    def key(self) -> str:
        """The text of its key with show_keys, if a share is kept for it; otherwise "#" and the id of its key."""

    @property
    def share(self) -> int:
        """The share that is kept for it. Calls may have their own."""

    @property
    def waits(self) -> float | None:
        """How long its first waiter has waited, in seconds; None if it does not wait."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class ProcessSnapshot:
    """A process that uses the store."""

    @property
    def pid(self) -> int:
        """The process's own view of its pid. In a container it is the container's pid."""

    @property
    def program(self) -> str:
        """The program that it runs."""

    @property
    def since(self) -> float:
        """The time since it began to use the store."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class LineSnapshot:
    """Who had the units of a limit, or of a key of it, and who waited for them, at the time of Store.line(). Durations
    are in seconds."""

    @property
    def holders(self) -> tuple[HolderSnapshot, ...]:
        """A HolderSnapshot per process with units of a limit of concurrent starts, the most units first. Empty for
        other limits: nobody has their units, which are free again when time has passed."""

    @property
    def heads(self) -> tuple[HeadSnapshot, ...]:
        """A HeadSnapshot per line, the next one first. A process has a line for each of its event loops, and one for
        all of its threads. Those that are passed are last. Of a "memory:" store only those of limits that tenants
        share: no other process waits for the others.
        """

    @property
    def waiting(self) -> tuple[WaitingSnapshot, ...]:
        """A WaitingSnapshot per process whose callers wait for the limit, the most callers first."""

@final
class HolderSnapshot:
    """A process that has units of a limit."""

    @property
    def process(self) -> ProcessSnapshot | None:
        """The process. None: it is not in the list of processes, or the store is "memory:"."""

    @property
    def starts(self) -> int:
        """The number of its starts that have not ended."""

    @property
    def units(self) -> int:
        """Their units."""

    @property
    def cools_down(self) -> bool:
        """Whether the starts have ended, and their units are free after the limit's cooldown."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class HeadSnapshot:
    """The first waiter of a line."""

    @property
    def process(self) -> ProcessSnapshot | None:
        """Its process, as in HolderSnapshot."""

    @property
    def waits(self) -> float:
        """How long it has waited."""

    @property
    def units(self) -> int:
        """The units that it wants."""

    @property
    def priority(self) -> int:
        """Its priority: less is sooner."""

    @property
    def tenant(self) -> str | None:
        """The tenant of a shared limit: "#" and the id of its key, as in TenantSnapshot. None if tenants do not share
        the limit."""

    @property
    def passed(self) -> bool:
        """Whether it is passed, because its process does not run."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class WaitingSnapshot:
    """How many callers of a process wait for a limit."""

    @property
    def process(self) -> ProcessSnapshot | None:
        """The process, as in HolderSnapshot."""

    @property
    def callers(self) -> int:
        """The number of its callers, for all keys of the limit together."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class GrantSnapshot:
    """The units that a server has granted to this process."""

    @property
    def held(self) -> int:
        """The granted units that are not used yet."""

    @property
    def requests(self) -> int:
        """The number of requests to the server."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Permit:
    """The permit of an admitted start. It ends by complete(), cancel() or settle(). A with statement (async with in
    event loops) completes it at the end of the block, also after an exception. Ending it again is a no-op. In a forked
    child an inherited permit does nothing, as it belongs to the parent.

    Or a place: a start in the future, taken by Limiter.reserve(). It starts when it is presented.
    """

    def complete(self) -> None:
        """Ends the permit of a job that has run."""

    def cancel(self) -> None:
        """Ends the permit of a job that has not run, or returns a place. Its units are free again at once."""

    def settle(self, actual: _Weight) -> None:
        """Ends the permit of a job that has used actual units instead of its weight. Unused units are free again at
        once. Additional units are owed, up to one whole capacity, and delay later starts. Where units cool down, both
        cool down from now on. A concurrency limit without a cooldown raises Unsupported. A mapping has the units of
        some parts of a composite, by their names; the other parts used what they were charged. Parts that were charged
        weights of their own are settled by a mapping.
        """

    def complete_async(self) -> Coroutine[None, None, None]:
        """As complete, for event loops: await it. Waiting for the store does not block the loop. The call finishes even
        if the task that awaits it is cancelled."""

    def cancel_async(self) -> Coroutine[None, None, None]:
        """As cancel, for event loops: see complete_async."""

    def settle_async(self, actual: _Weight) -> Coroutine[None, None, None]:
        """As settle, for event loops: see complete_async."""

    def arrived(self) -> None:
        """Says that the job has reached the server that counts it, as when the head of its response is here. A limit
        with a cooldown counts it from now on instead of from its end. The permit remains. A no-op for other limits."""

    def arrived_async(self) -> Coroutine[None, None, None]:
        """As arrived, for event loops: see complete_async."""

    def renew(self) -> None:
        """Renews a lease: it holds its units for its full duration from now on. A no-op for a permit that is not a
        lease. Raises LeaseLost if the lease has already ended; another start may hold its units."""

    @property
    def chosen(self) -> Limiter | Any:
        """The limiter that was charged, of a FirstOfLimiter: the object that it was made with. With FirstOfLimiters in
        one another, the innermost. For a composite: what its first part of this kind has chosen. None for others."""

    @property
    def fence(self) -> int | None:
        """A number that increases with every lease of a key, so that a protected resource can reject an old holder.
        None for a permit that is not a lease."""

    def to_text(self) -> str:
        """Returns the permit or place as a short text, for another process that uses the same limit. Limiter.present
        reads the text of a place, Limiter.permit that of a started permit."""

    @property
    def started(self) -> bool:
        """Whether the job may run; False for a place."""

    @property
    def wait(self) -> float:
        """The seconds until the place should be presented. 0.0 if it has started, or if it is ready and has not been
        refused."""

    @property
    def ready_at(self) -> datetime | None:
        """The time at which the place is or was ready, as an aware datetime in UTC. None if the start had no place."""

    @property
    def ready_at_monotonic(self) -> float | None:
        """ready_at on the clock of time.monotonic(), in seconds, for measurements. It is never later than the true
        time. On a server it may be earlier by the delay of the server's answers."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Decision:
    """The answer of a limiter: whether a start was admitted, and if not, when to retry. True if admitted. Durations are
    in seconds."""

    @property
    def admitted(self) -> bool:
        """Whether the start was admitted."""

    @property
    def retry_after(self) -> float:
        """0 if admitted. Otherwise the time after which a retry succeeds, unless another caller takes the units first.
        A concurrency limit frees units when a job completes, so there it is only a suggestion."""

    @property
    def suggested_after(self) -> float:
        """The retry delay for callers that requeue: retry_after or longer, with the limit's backoff."""

    @property
    def remaining(self) -> int | None:
        """The heaviest start that would be admitted after this decision; None if there is no limit."""

    @property
    def limit(self) -> int | None:
        """The units that the limit allows; None if there is no limit."""

    @property
    def reset_after(self) -> float:
        """The time after which the limiter is back in its initial state if nothing else starts. 0 for a concurrency
        limit, which cannot know."""

    @property
    def denied_by(self) -> str | None:
        """The name of the limit that denied the start; None if it was admitted."""

    @property
    def permit(self) -> Permit | None:
        """The permit of an admitted start; always None from peek."""

    def __bool__(self) -> bool: ...

@disjoint_base
class Limiter:
    """The base class of all limiters. A limiter decides whether a job may start now, and if not, when.

    Most methods take a key. All keys have the same policy, and each has its own budget; None means no key. Limiters can
    be used from any thread, and continue to work in a forked child.

    A mapping as the key or the weight of a start has those of some parts of a composite, by their names. The other
    parts get no key and weight 1, or the key and the weight that are no mappings. All parts are charged in one act, or
    none.

    `with limiter:` and `async with limiter:` wait for a start without a key, enter with the permit, and complete it. A
    limiter whose store is shared by processes can be pickled: unpickling makes a limiter with the same arguments. A
    copy is the limiter itself.
    """

    @property
    def name(self) -> str:
        """The limit's name, as in Decision.denied_by."""

    @property
    def _has_tenants(self) -> bool:
        """Whether tenants share the limit, or a part of it. Then there are no places far ahead."""

    @property
    def window(self) -> float | None:
        """The shortest time over which starts are counted, in seconds; None if starts are not counted. The cost of a
        place's grace is a fraction of it."""

    @property
    def parts(self) -> dict[str, Limiter]:
        """The parts of a composite by their names: a new dict of limiters. Other limiters have none."""

    @property
    def _timed(self) -> int | None:
        """A number that all objects of its limit have, while one of them exists. None if its units do not come back by
        time alone: its permits hold them, or it charges one of several alternatives."""

    def _part_of(self, limiter: Limiter) -> str | None:
        """The name of the part that is, or contains, a limiter."""

    def _charge_others(self, key: str | None, units: int, leaving: int) -> int:
        """Charges at most this many units that others have spent elsewhere, and leaves so many. Returns how many it has
        charged."""

    def _learn(self, units: int, window: float, is_estimated: bool, host: str) -> None:
        """Puts what a server says about this limit above the declared policy, later: so many units in a window of
        seconds."""

    async def _charge_others_async(self, key: str | None, units: int, leaving: int) -> int:
        """As _charge_others, for event loops."""

    def try_acquire(self, key: _Key = None, weight: _Weight = 1) -> Permit | None:
        """Starts a job if the limit admits it now, and returns its permit. Deciding and recording is one atomic step.
        Returns None if denied, which consumes nothing."""

    def decide(self, key: _Key = None, weight: _Weight = 1) -> Decision:
        """As try_acquire, but returns the full decision: the permit or the retry delay, and the units that remain."""

    def peek(self, key: _Key = None, weight: _Weight = 1) -> Decision:
        """Returns the decision that decide would return, without a permit. Records nothing. weight may be 0."""

    def forecast(self, starts: int, key: _Key = None) -> float | None:
        """Returns in how many seconds this many more starts will have begun, each of one unit, after the starts that
        are counted and the first waiters that come before; None if nobody knows, because a start has to end before.
        Records nothing. The time is exact for a rate with one window, a delay and a bucket where nobody waits, and
        otherwise a lower bound.
        """

    def acquire(
        self,
        key: _Key = None,
        weight: _Weight = 1,
        timeout: _Duration | None = None,
        *,
        priority: int = 0,
        share: int | None = None,
        place: Permit | str | None = None,
        grace: _Duration | None = None,
    ) -> Permit:
        """Waits until the limit admits the start, and returns its permit. It waits at most timeout seconds (None: no
        limit), without the GIL, and Ctrl-C interrupts it. Waiters of one process start in the order of their priority
        (lower numbers first), then in the order of their calls. A waiter that is interrupted or times out returns its
        place.

        share is that of the tenant which the key names in a shared limit, such as "500/1m shared": 1 to 1000. While
        tenants wait, one with share 3 gets three starts where one with 1 gets one. None: the one that Store.share has
        set, or 1. Other limits ignore it.

        place continues the wait of a place from reserve, given as the object or its text, instead of key and weight.
        The place then belongs to this waiter.

        grace is for a caller that may be late, because of a busy event loop or a garbage collection for example. A
        waiter at most grace seconds late still starts with its place (None: a fortieth of the window, at most 50 ms).
        The place blocks that start for all other callers until then, so pass no more than needed. A place from reserve
        has its own grace.

        Raises AcquireTimeout if the start cannot be admitted before the timeout: at once, if that is already certain.
        Raises RuntimeError instead of waiting in a coroutine of a running event loop, which it would stop: use
        acquire_async there.
        """

    def try_acquire_async(self, key: _Key = None, weight: _Weight = 1) -> Coroutine[None, None, Permit | None]:
        """As try_acquire, for event loops: await it. Waiting for the store does not block the loop."""

    def decide_async(self, key: _Key = None, weight: _Weight = 1) -> Coroutine[None, None, Decision]:
        """As decide, for event loops: await it. Waiting for the store does not block the loop."""

    def peek_async(self, key: _Key = None, weight: _Weight = 1) -> Coroutine[None, None, Decision]:
        """As peek, for event loops: await it. Waiting for the store does not block the loop."""

    def forecast_async(self, starts: int, key: _Key = None) -> Coroutine[None, None, float | None]:
        """As forecast, for event loops: await it. Waiting for the store does not block the loop."""

    def acquire_async(
        self,
        key: _Key = None,
        weight: _Weight = 1,
        timeout: _Duration | None = None,
        *,
        priority: int = 0,
        share: int | None = None,
        place: Permit | str | None = None,
        grace: _Duration | None = None,
    ) -> Acquisition:
        """As acquire, for event loops: await it for the permit, or use it with `async with`. A cancelled waiter holds
        no permit and returns its place."""

    def reserve(
        self,
        key: _Key = None,
        weight: _Weight = 1,
        max_wait: _Duration | None = None,
        grace: _Duration | None = None,
    ) -> Permit | None:
        """Takes a place: a start in the future, or now, that counts against the limit from this call on. present()
        starts with it. Returns None and takes nothing if the place would be more than max_wait seconds away (None: any
        distance).

        A place is valid for one start, from its ready_at until grace seconds later (None: a fortieth of the window, at
        most 50 ms). Return an unused place with cancel().
        """

    def present(self, place: Permit | str) -> Permit:
        """Starts with a place, given as the object or its text, if the place is ready.

        If started is True, the result is the permit of the start. Otherwise it is a place to present after its wait:
        the same place if this call was too early; a fresh one if the place was too late, was used before, or was
        invalidated by a gate or a policy change.
        """

    def permit(self, text: str) -> Permit:
        """Returns the permit for a text from to_text, also from another process, to complete, cancel or settle its
        start."""

    def place(self, text: str) -> Permit:
        """Returns the place for a text from to_text, to present it or to return it with cancel(). Cancelling does
        nothing if a job has already started with the place."""

    def limit(
        self,
        key: _KeyOf | None = None,
        weight: _WeightOf = 1,
        timeout: _Duration | None = None,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Decorates a function or a coroutine function. Each call waits as acquire does, and completes its permit at
        its end. key is the name of an argument of the call, a format of arguments such as "{tenant}:{model}", or a
        function that gets the arguments. weight is a number, the name of an argument, or such a function. A mapping has
        one of these for each of some parts of a composite.
        """

    def wrap(
        self,
        function: Callable[_P, _R],
        key: _KeyOf | None = None,
        weight: _WeightOf = 1,
        timeout: _Duration | None = None,
    ) -> Callable[_P, _R]:
        """As limit, for a function that you cannot decorate: returns a function that waits and then calls it."""

    def complete(self, permit: Permit) -> None:
        """Completes a permit of this limiter: the job has run. Ending it again is a no-op. A permit of another limiter
        raises ForeignPermit."""

    def can_proceed(self, key: str | None = None) -> bool:
        """Returns whether a start of weight 1 would be admitted now. Records nothing."""

    def record_job_start(self, key: str | None = None) -> None:
        """Records that a job has started. It is recorded even if the limit is full, because the caller has already
        decided."""

    def record_job_completion(self, key: str | None = None) -> None:
        """Records that a job has ended: the oldest one that this process recorded for the key with record_job_start."""

    def get_next_available_time(self, key: str | None = None) -> datetime:
        """Returns the earliest time at which a start of weight 1 would be admitted, as an aware datetime in UTC. Gates
        count. It is the current time if the start would be admitted now."""

    def set_next_available_time(self, when: datetime, key: str | None = None) -> None:
        """Sets a gate: nothing starts before when, an aware datetime. Without a key it binds all keys. A gate only
        moves later; clear removes it. A time in the past sets no gate."""

    def pause(self, duration: _Duration, key: str | None = None) -> None:
        """Sets a gate relative to now: nothing starts for duration, which is seconds or a timedelta, up to 366 days.
        Without a key it binds all keys."""

    def clear(self, key: str | None = None) -> None:
        """Resets a key to its initial state and removes its gate. Without a key it resets all keys."""

    def pause_async(self, duration: _Duration, key: str | None = None) -> Coroutine[None, None, None]:
        """As pause, for event loops."""

    def clear_async(self, key: str | None = None) -> Coroutine[None, None, None]:
        """As clear, for event loops."""

    def stats(self, key: str | None = None) -> Stats:
        """Returns the counts of a key, or of the whole limit without one. They cover all processes that share the
        limit; the last second of other processes may be missing."""

    def on(self, event: _Happening, function: Callable[[LimitEvent], object]) -> Callable[[], None]:
        """Calls a function with a LimitEvent at each event of this limiter in this process: "throttled" (a start was
        denied or has to wait), "unknown_limit" or "store_error". Returns a function that removes it.

        An exception of the function goes to sys.unraisablehook and has no effect on the decision.
        """

    def __enter__(self) -> Permit: ...
    def __exit__(self, *_exception: object) -> None: ...
    async def __aenter__(self) -> Permit: ...
    async def __aexit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object) -> Self: ...

class NullLimiter(Limiter):
    """Admits every start and records nothing."""

    def __new__(cls) -> Self: ...

class RateLimiter(Limiter):
    """Admits at most max_executions units in any rolling window, over all programs that use the same name in the same
    store.

    max_executions is 1 to 1,000,000,000 (4,096 with several windows). window_size_in_seconds is a number of seconds or
    a timedelta, 1 µs to 366 days. For several windows at once pass windows instead: one to four such pairs, as in
    windows=[(100, 60), (5, 1.0)]; a start must fit into all of them. The first use declares the limit and replaces the
    policy that the name had.

    The other parameters set how Decision.suggested_after grows, for callers that requeue: initial_backoff_delay after
    the first denial, backoff_multiplier times as long after each further denial, at most max_backoff_delay. An
    admission resets it. jitter spreads a delay b: "scaled" over b to 2 b, "full" over 0 to b, "equal" over b/2 to b,
    "none" not at all.

    shared makes one budget for all keys. Each names a tenant in it, and while tenants wait they start by their shares:
    see Store.share. All limiters with a store take it, but for LeakyBucketLimiter.
    """

    @overload
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        windows: None = None,
        initial_backoff_delay: _Duration = 1.0,
        backoff_multiplier: float = 2.0,
        max_backoff_delay: _Duration = 600.0,
        jitter: _Jitter = "scaled",
        shared: bool = False,
    ) -> Self: ...
    @overload
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: None = None,
        window_size_in_seconds: None = None,
        windows: Iterable[tuple[int, _Duration]],
        initial_backoff_delay: _Duration = 1.0,
        backoff_multiplier: float = 2.0,
        max_backoff_delay: _Duration = 600.0,
        jitter: _Jitter = "scaled",
        shared: bool = False,
    ) -> Self: ...

class ConcurrencyLimiter(Limiter):
    """Admits at most max_concurrent_jobs units at the same time, per key. With store and name, all programs that use
    the same name in the same store share the limit. Without them it counts in this process, and a forked child counts
    its own.

    A permit of a shared limit is a lease. If the process that holds it is killed, the next attempt of any process takes
    it back. With lease (seconds or a timedelta) it also ends after that time, unless Permit.renew is called before.

    With cooldown (seconds or a timedelta) the units of a start become free only that long after it has ended. So at
    most max_concurrent_jobs units are counted in any rolling window of that length, also as the server counts that the
    jobs call: see Permit.arrived.

    max_concurrent_jobs is 1 to 65535. clock is for tests without a store.
    """

    def __new__(
        cls,
        max_concurrent_jobs: int,
        *,
        store: Store | None = None,
        name: str | None = None,
        lease: _Duration | None = None,
        cooldown: _Duration | None = None,
        clock: ManualClock | None = None,
        shared: bool = False,
    ) -> Self: ...

class DelayLimiter(Limiter):
    """Keeps at least delay between one start and the next, per key. With store and name, all programs that use the same
    name in the same store share the limit. Without them it counts in this process. Every start weighs 1.

    delay is seconds or a timedelta, 1 µs to 366 days. clock is for tests without a store.
    """

    def __new__(
        cls,
        delay: _Duration = 0.05,
        *,
        store: Store | None = None,
        name: str | None = None,
        clock: ManualClock | None = None,
        shared: bool = False,
    ) -> Self: ...

class EvenlySpacedRateLimiter(Limiter):
    """Spaces max_executions starts evenly over a window, per key. With store and name, all programs that use the same
    name in the same store share the limit. Without them it counts in this process. Every start weighs 1.

    An adaptive limit shortens the distance by the average duration of the last max_executions jobs, from their start to
    complete or settle. At most max_executions jobs start in any rolling window. A limit that is not adaptive spaces all
    starts window_size_in_seconds / max_executions apart.

    max_executions is 1 to 4,096, or to 1,000,000,000 if not adaptive. window_size_in_seconds is a number of seconds or
    a timedelta, 1 µs to 366 days. clock is for tests without a store.
    """

    def __new__(
        cls,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        adaptive: bool = True,
        store: Store | None = None,
        name: str | None = None,
        clock: ManualClock | None = None,
        shared: bool = False,
    ) -> Self: ...

class TokenBucketLimiter(Limiter):
    """A bucket that holds at most burst tokens (default: rate) and gains rate tokens per period, evenly. A start takes
    as many tokens as it weighs. In any window of w seconds at most burst + rate · w / period units start.

    rate and burst are 1 to 1,000,000,000; period is seconds or a timedelta, 1 µs to 366 days.
    """

    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        rate: int,
        period: _Duration = 1.0,
        burst: int | None = None,
        shared: bool = False,
    ) -> Self: ...

class LeakyBucketLimiter(Limiter):
    """Admits one unit per period / rate. Up to queue units (default: rate) wait for their turn; a start beyond that
    gets no place.

    rate and queue are 1 to 1,000,000,000; period is seconds or a timedelta, 1 µs to 366 days.
    """

    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        rate: int,
        period: _Duration = 1.0,
        queue: int | None = None,
    ) -> Self: ...

class FixedWindowLimiter(Limiter):
    """Admits at most max_executions units in each window. Windows are aligned to the Unix epoch, so up to twice as many
    units can start across a boundary.

    max_executions is 1 to 1,000,000,000. window_size_in_seconds is seconds or a timedelta, 1 µs to 366 days.
    """

    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        shared: bool = False,
    ) -> Self: ...

class SlidingWindowCounterLimiter(Limiter):
    """Admits about max_executions units in any rolling window, estimated from two counts. Suits large limits that may
    be approximate.

    max_executions is 1 to 1,000,000,000. window_size_in_seconds is seconds or a timedelta, 1 µs to 366 days.
    """

    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        shared: bool = False,
    ) -> Self: ...

@disjoint_base
class CompositeLimiter(Limiter):
    """Admits a start if every child admits it. If one child denies, no child is charged. All children get the same key
    and weight, unless a mapping has those of some children by their names. A gate applies to all children.

    limiters is an iterable of limiters, which are called as their limits, or a mapping of names to limiters.

    A child is a limiter or an object written in Python: a CustomLimiter, or a JobLimiter with the six methods of job
    queues. Such an object is called from any thread, also inside acquire. An exception that it raises reaches the
    caller unchanged.
    """

    @overload
    def __new__(cls, limiters: Mapping[str, _Child], /) -> Self: ...
    @overload
    def __new__(cls, limiters: Iterable[_Child], /) -> Self: ...
    def add(self, limiter: _Child, name: str | None = None) -> None:
        """Adds a child. It needs a name if the others were given names. Permits taken before complete against the
        children that they were taken from."""

@disjoint_base
class FirstOfLimiter(Limiter):
    """Admits a start if one of several limiters admits it: the first of them, in the given order, that can start now.
    Exactly one is charged; permit.chosen says which. A waiter starts wherever it can start first: it moves if a job
    ends elsewhere, or if its limiter is paused. If none can start, the decision is that of the one that can start
    first.

    limiters is an iterable of limiters, the preferred one first. All get the same key and weight; those that are too
    small for a weight are left out. A mapping has those of parts that all of them have. A pause applies to all
    limiters: after a refusal, pause permit.chosen.

    A limiter may also be an object written in Python, as in a CompositeLimiter.
    """

    def __new__(cls, limiters: Iterable[_Child], /) -> Self: ...
    def add(self, limiter: _Child) -> None:
        """Adds a limiter, as the last one."""

@final
class Acquisition(Coroutine[Any, Any, Permit]):
    """A pending acquisition. `await` returns the permit; `async with` completes the permit at the end of the body.

    It starts at once if capacity is free and no other caller waits. Otherwise it runs the coroutine of `_loops`.
    """

    def __await__(self) -> Generator[Any, Any, Permit]: ...
    async def __aenter__(self) -> Permit: ...
    async def __aexit__(self, *_exception: object) -> None: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, *exception: Any) -> Any: ...
    def close(self) -> None: ...

@final
class PermitStacks:
    """A stack of permits for each thread, greenlet, and task of an event loop.

    A thread holds the mutex only while it holds the GIL, and never while Python code runs. So the lock order is always
    the same, and no fork happens while it is locked.
    """

    def push(self, permit: Permit) -> None:
        """Adds a permit to the caller's stack."""

@final
class AsyncCall:
    """One call, made again until it has an answer."""

    def answer(self, wait: bool) -> Permit | Decision | Literal[False] | None:
        """Returns the answer, or False if the call would have to wait and `wait` is false."""

@final
class Waiter:
    """The request of one waiter, and its number once it is in a line."""

    @property
    def lines(self) -> dict[int, ref[Waiters]]:
        """Weak references to the lines of the limiter, by the ids of their event loops."""

    def line(self, wake: Callable[[], object]) -> Line:
        """Makes a new line for the limiter. `wake` is called from any thread when `advance` has something to return
        before its time."""

@final
class Line:
    """The waiters of one limiter in one event loop. One thread uses it at a time. Hooks may let other greenlets run, so
    their events are kept until the line's driver calls `call_hooks`."""

    def join(self, waiter: Waiter, wait: bool) -> Permit | int | None:
        """Joins the line. Returns the permit if the start is admitted at once, otherwise the number of the waiter.
        Returns None and changes nothing if the call would have to wait for the store and `wait` is false."""

    def advance(self, wait: bool) -> list[tuple[int, Permit | Exception]]:
        """Does the work that is due for one waiter, which starts before the next one is decided. Returns the waits that
        ended, by number, each with a permit or an exception."""

    def prepare(self, waiter: Waiter) -> bool:
        """In a thread that may wait: does what the first start of a waiter's key waits for, if it does, so that the
        waiter can join in its loop, which then decides the start when the waiter goes on. Returns False if the start
        itself has to wait.
        """

    def next_to_start(self) -> int | None:
        """Returns the number of the waiter that `advance` would start now, if that is known."""

    def has_hook_calls(self) -> bool:
        """Returns whether hooks must be called."""

    def call_hooks(self) -> None:
        """Calls the hooks of the pending events."""

    def would_wait(self) -> bool:
        """Returns whether the next step would have to wait for the store."""

    def next(self) -> float | None:
        """Returns the seconds until the next step is due, or None without waiters."""

    def wake(self, key: str | None) -> None:
        """Notes that units of this key may have become free (None: of any key)."""

    def leave(self, waiter: Waiter) -> int | None:
        """Removes a waiter. Returns its number, if it had one."""

@final
class Pool:
    """The waiters of one limiter in one pool. One thread uses it at a time."""

    def __new__(cls, limiter: Limiter, grace: _Duration | None) -> Self: ...
    def join(self, key: _Key, weight: _Weight, priority: int, hold: _Duration | None, place: str | None) -> int:
        """Joins the line and returns the waiter's number, which `advance` uses. The waiter is sent away if its start is
        more than `hold` seconds away. A place of another limit is ignored."""

    def advance(
        self, workers: int, free: int
    ) -> tuple[list[tuple[int, Literal["held", "go", "away"], str | None, float]], float | None]:
        """Does the work that is due. Returns the instructions to waiters, and the seconds until the next call is due or
        None."""

    def arrive(self, number: int) -> None:
        """Notes that a job has arrived in its worker."""

    def end(self, number: int) -> None:
        """Notes that a job has ended, or will not start."""

    def leave(self, number: int) -> None:
        """Removes a waiter."""

    def take_along(self, number: int) -> tuple[str | None, float]:
        """Removes a waiter that continues to wait in another process. Returns the text of its place and the seconds
        until that is ready, if it has a place."""

    def renew(self) -> None:
        """Takes new places after a policy change."""

    def clear(self) -> None:
        """Removes all waiters."""

    def running(self) -> int:
        """Returns the number of jobs that were sent to workers and have not ended."""

    def waiting(self) -> dict[str, int]:
        """Returns the number of waiters by key. Those of joint starts are counted with the start's own key."""
