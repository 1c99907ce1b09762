"""What a decision costs in Python, beside other limiters: bench.py DIRECTORY [CASE-FILTER] [--most]

Prints a JSON object per line: `ns` is the median over batches, `p99` and `p999` are of decisions timed one by one, `cpu_ns` is
the processor time of a decision, background threads included. Databases go into DIRECTORY; only cases whose names hold
CASE-FILTER are run. `--most` runs others: a real limit across the boundary of a window, from all that may share it.
"""

import asyncio
import json
import platform
import random
import sys
from importlib.metadata import version

import crossing
import importing
import many
import peers
import waiting
from timing import Case, Peer, measure

ALWAYS_ROOM, NEVER_ROOM = (100, 1e-6), (1, 3600)
KEYS = [f"tenant-{number}" for number in range(100_000)]
PACKAGES = ("aiolimiter", "limits", "pyrate-limiter", "throttled-py")


def one_key(where: str, is_wanted) -> list[Case]:
    cases = []
    on_disk = [
        ("sqlite", "workglow-limit", peers.ours_sqlite),
        ("pyrate-limiter, SQLite", "pyrate-limiter", lambda l, w, k, where: peers.pyrate_sqlite(f"{where}/pyrate-{l}.db", l, w)),
        ("sqlite3 transaction", "hand-written", lambda l, w, k, where: peers.transaction(f"{where}/transaction-{l}.db", l, w)),
    ]
    for name, package, make in peers.IN_MEMORY + on_disk:
        has_keys = make not in (on_disk[1][2], on_disk[2][2])  # Those two count one thing per table.
        for what, policy, key in [("admit", ALWAYS_ROOM, None), ("deny", NEVER_ROOM, None), ("admit, with key", ALWAYS_ROOM, "tenant-7")]:
            full = label(name, package, what)
            if is_wanted(full) and (key is None or has_keys):
                peer = make(*policy, key is not None, where)
                check(full, peer, what == "deny")
                cases.append(Case(full, package, peer, [key] if key else None))
    return cases


def check(name: str, peer: Peer, is_denied: bool) -> None:
    """Is it asked for what it is said to be asked for?"""
    decide, key = peer.decider(), (peer.renew() if peer.renew else None) or "tenant-7"
    if is_denied:
        decide(key)
    for _ in range(5):
        if decide(key) is is_denied:
            raise RuntimeError(f"{name} is not what it answers")


def many_keys(where: str, is_wanted) -> list[Case]:
    """Each of 100,000 keys, in an order that no cache foresees: 100 per minute, so that all of them have room."""
    cases = []
    keys = random.Random(1).sample(KEYS, len(KEYS))
    for name, package, make in [*peers.IN_MEMORY, ("sqlite", "workglow-limit", peers.ours_sqlite)]:
        full = label(name, package, "admit, 100,000 keys")
        if is_wanted(full):
            peer = make(100, 60, True, where)
            decide = peer.decider()
            for key in keys:
                decide(key)
            cases.append(Case(full, package, peer, keys, {"keys": len(keys)}))
    return cases


def awaited(is_wanted) -> list[Case]:
    loop = asyncio.new_event_loop()
    both = [("memory", "workglow-limit", peers.awaited), ("aiolimiter", "aiolimiter", peers.of_aiolimiter)]
    wanted = [(label(name, package, "admit, awaited"), package, make) for name, package, make in both]
    return [Case(full, package, make(*ALWAYS_ROOM), loop=loop) for full, package, make in wanted if is_wanted(full)]


def label(name: str, package: str, what: str) -> str:
    return f"{name} {what}" if package == "workglow-limit" else f"{name}: {what}"


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--most"]
    if not 1 <= len(words) <= 2 or words[0].startswith("-"):
        print("usage: bench.py DIRECTORY [CASE-FILTER] [--most]", file=sys.stderr)
        return 2
    where, part = (words + [""])[:2]

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
