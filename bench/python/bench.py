"""The cost of a decision in Python, compared with other limiters: bench.py DIRECTORY [CASE-FILTER] [--most]

Prints a JSON object per line: `ns` is the median over batches, `p99` and `p999` are of decisions timed one by one,
`cpu_ns` is the processor time of a decision, including background threads. Databases go into DIRECTORY. Only cases
whose names contain CASE-FILTER run. `--most` runs other cases: a real limit across the boundary of a window, from all
that share it.
"""

import asyncio
import json
import platform
import random
import sys
from functools import partial
from importlib.metadata import version

import crossing
import importing
import many
import peers
import waiting
from timing import Case, Peer, label, measure

ALWAYS_ROOM, NEVER_ROOM = (100, 1e-6), (1, 3600)
KEYS = [f"tenant-{number}" for number in range(100_000)]
PACKAGES = ("workglow-limit", "aiolimiter", "filelock", "limits", "pyrate-limiter", "throttled-py")


def with_keys(where: str) -> list[tuple[str, str, peers.Make]]:
    return [*peers.IN_MEMORY, ("sqlite", "workglow-limit", partial(peers.ours, f"sqlite:{where}/python.db"))]


def without_keys(where: str) -> list[tuple[str, str, peers.Make]]:
    """Each limit has its own file, because they count one thing per table."""

    def pyrate(limit: int, window: float, key: bool) -> Peer:
        return peers.pyrate_sqlite(f"{where}/pyrate-{limit}.db", limit, window)

    def transaction(limit: int, window: float, key: bool) -> Peer:
        return peers.transaction(f"{where}/transaction-{limit}.db", limit, window)

    return [("pyrate-limiter, SQLite", "pyrate-limiter", pyrate), ("sqlite3 transaction", "hand-written", transaction)]


def one_key(where: str, is_wanted) -> list[Case]:
    kinds = [("admit", ALWAYS_ROOM, None), ("deny", NEVER_ROOM, None), ("admit, with key", ALWAYS_ROOM, "tenant-7")]
    cases = []
    keyed = with_keys(where)
    for name, package, make in keyed + without_keys(where):
        for what, policy, key in kinds if (name, package, make) in keyed else kinds[:2]:
            full = label(name, package, what)
            if is_wanted(full):
                peer = make(*policy, key is not None)
                check(full, peer, what == "deny")
                cases.append(Case(full, package, peer, [key] if key else None))
    return cases


def check(name: str, peer: Peer, is_denied: bool) -> None:
    """Checks that a case decides as described."""
    decide, key = peer.decider(), (peer.renew() if peer.renew else None) or "tenant-7"
    if is_denied:
        decide(key)
    for _ in range(5):
        if decide(key) is is_denied:
            raise RuntimeError(f"{name} is not what it answers")


def many_keys(where: str, is_wanted) -> list[Case]:
    """100,000 keys in an order that no cache predicts, with 100 per minute, so that all are admitted."""
    cases = []
    keys = random.Random(1).sample(KEYS, len(KEYS))
    for name, package, make in with_keys(where):
        full = label(name, package, "admit, 100,000 keys")
        if is_wanted(full):
            peer = make(100, 60, True)
            decide = peer.decider()
            for key in keys * 2:  # The first write to a page of a file costs more than a decision.
                decide(key)
            cases.append(Case(full, package, peer, keys, {"keys": len(keys)}))
    return cases


def awaited(is_wanted) -> list[Case]:
    loop = asyncio.new_event_loop()
    both = [("memory", "workglow-limit", peers.awaited), ("aiolimiter", "aiolimiter", peers.of_aiolimiter)]
    wanted = [(label(name, package, "admit, awaited"), package, make) for name, package, make in both]
    return [Case(full, package, make(*ALWAYS_ROOM), loop=loop) for full, package, make in wanted if is_wanted(full)]


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--most"]
    if not 1 <= len(words) <= 2 or words[0].startswith("-"):
        print("usage: bench.py DIRECTORY [CASE-FILTER] [--most]", file=sys.stderr)
        return 2
    where, part = ([*words, ""])[:2]

    def is_wanted(name: str) -> bool:
        return part in f"python {name}"

    print(json.dumps({"version": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}}))
    if "--most" in sys.argv:
        crossing.measure(where, is_wanted)
        return 0
    measure(one_key(where, is_wanted) + awaited(is_wanted))
    measure(many_keys(where, is_wanted))
    many.measure_threads(where, is_wanted)
    many.measure_processes(where, is_wanted)
    waiting.measure(is_wanted)
    importing.measure(where, is_wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
