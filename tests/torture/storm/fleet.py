"""The storm of a fleet: eight sites in three languages share one limit on a real server under every kind of fault.

A site is a process, with a connection path to the server of its own (proxy.py). At random it is killed and restarted at once, stopped
for 0.2 to 5 s, its messages are delayed by up to 1 s, its connections are cut, or it is partitioned from the server together with
others. The wall clocks of most sites are an hour off (clock.c), and two run in time namespaces of their own, if the kernel and our
rights allow it. Half of the sites wait for their starts, half do not. `--server forget` wipes the server's memory now and then, and
`--server restart` kills the server and starts an empty one. With these, and where Postgres forgets, no site is killed: a new site
cannot know that data was lost (docs/servers.md).

After the faults, every site must start again. A site that ends on its own is an error at once.

*The evidence.* A start lies between the monotonic clock before its call and after it (evidence.py). Here that includes waiters,
and they wait only briefly. The time at which a waiter's place is ready would be more exact, but a site knows it only by the server's clock,
which it follows as late as answers arrive. With answers a second late, that time may be after the start. A namespace shifts the monotonic
clock by a known number of seconds, which is subtracted. No wall clock is read.

With `--plant` each site has a limit of its own, the fault that the storm exists to find: it must then report starts over
the limit.

`--out` is the folder with the Node package (`node_modules/workglow-limit`) and the compiled C member (`storm_member`).
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from proxy import Proxy
from servers import SERVERS
from storm import HERE, LANGUAGES, Member, prepare

# (`storm` has added its path.)
from evidence import SECOND, most_in_any_window, read

SITES = 8
HOUR = 3600
PATIENCE = 60  # seconds until a site without a first start counts as stuck


class Site:
    """A process and its connection path to the server."""

    def __init__(self, number, way, starts):
        self.number, self.way, self.starts = number, way, starts
        self.language = LANGUAGES[number % len(LANGUAGES)]
        self.waits = number % 2 == 1
        self.wall = (-HOUR, HOUR, 0)[number // 2 % 3]  # the error of its wall clock in seconds
        self.monotonic = 0  # and its monotonic clock
        self.member, self._until, self._undo = None, None, None
        starts.mkdir()

    def start(self, command, errors, shim):
        environment = os.environ | {"LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(self.wall)}
        self.member = Member(command, errors, environment)

    def suffers(self):
        return self._until is not None

    def suffer(self, seconds, undo):
        self._until, self._undo = time.monotonic() + seconds, undo

    def recover(self, now):
        if self.suffers() and self._until <= now:
            self._undo()
            self._until = None

    def read(self):
        """Returns its starts, on the storm's own clock."""
        shift = self.monotonic * SECOND
        return [start._replace(a=start.a - shift, b=start.b - shift) for start in read(self.starts)]


def kill(site, others, proxy, window):
    site.member.kill()
    site.member.start()


def stop(site, others, proxy, window):
    site.member.signal(signal.SIGSTOP)
    site.suffer(random.uniform(0.2, 5), lambda: site.member.signal(signal.SIGCONT))


def delay(site, others, proxy, window):
    # At a delay above a tenth of the window the server decides each start.
    site.way.late = random.uniform(0.001, 1 if random.random() < 0.25 else window / 10)
    site.suffer(random.uniform(0.5, 4), lambda: setattr(site.way, "late", 0))


def cut(site, others, proxy, window):
    proxy.cut(site.way)


def partition(site, others, proxy, window):
    seconds = random.uniform(0.1, 3)
    for one in [site, *random.sample(others, random.randint(0, min(3, len(others))))]:
        one.way.is_open = False
        one.suffer(seconds, lambda one=one: setattr(one.way, "is_open", True))


def is_new_after_loss(options):
    """Returns whether a new site cannot know that the server has lost data. (Redis counts how often it was wiped.)"""
    return options.server == "restart" or (options.kind == "postgres" and options.server == "forget")


def rage(sites, proxy, server, options):
    """Injects faults into the sites, and optionally the server. Returns how often each happened."""
    torments = [stop, delay, cut, partition] + [kill] * (not is_new_after_loss(options))
    counts = Counter({one.__name__: 0 for one in torments})
    # After a loss nothing starts for a window and up to 2 s: leave time for starts in between, and at the end.
    silence = options.window + min(options.window / 2, 2)
    end = time.monotonic() + options.seconds
    next_loss = time.monotonic() + silence / 2
    while (now := time.monotonic()) < end:
        # Rare enough that half of the sites work at a time: otherwise hardly any site starts.
        time.sleep(random.uniform(0, 0.5))
        for site in sites:
            site.member.check()
            site.recover(now)
        if options.server and next_loss < now < end - silence:
            getattr(server, options.server)()
            counts[f"{options.server} of the server"] += 1
            next_loss = now + silence * random.uniform(1.2, 2)
        well = [site for site in sites if not site.suffers()]
        if well:
            site = random.choice(well)
            torment = random.choice(torments)
            torment(site, [one for one in well if one is not site], proxy, options.window)
            counts[torment.__name__] += 1
    for site in sites:
        site.recover(float("inf"))
    return counts


def gather(sites, since=0):
    """Waits until each site has started since then. So it knows the server."""
    deadline = time.monotonic() + PATIENCE
    while missing := [site.number for site in sites if not any(start.a >= since for start in site.read())]:
        if time.monotonic() > deadline:
            raise SystemExit(f"sites that do not start within {PATIENCE} s: {missing}")
        for site in sites:
            site.member.check()
        time.sleep(0.05)


def namespaces(sites):
    """Shifts the clocks of the last two sites, and returns how to start them; prints why if it cannot."""
    try:
        subprocess.run(["unshare", "--time", "--monotonic", "1", "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"SKIPPED, no site in a time namespace: {getattr(error, 'stderr', '') or error}")
        return {}
    shifts = {sites[-2]: (HOUR, 2 * HOUR), sites[-1]: (-int(time.monotonic()) // 2, HOUR)}
    for site, (monotonic, _) in shifts.items():
        site.monotonic = monotonic
    command = "unshare --time --monotonic {} --boottime {}"
    return {site: command.format(*shift).split() for site, shift in shifts.items()}


def begin(sites, options, folder, server):
    """Starts all sites."""
    shim, errors = folder / "clock.so", folder / "members.err"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(HERE / "clock.c"), "-o", str(shim), "-ldl"], check=True)
    programs = {
        "python": [sys.executable, str(HERE / "member.py")],
        "node": ["node", str(folder / "member.mjs")],
        "c": [str(folder.parent / "storm_member")],
    }
    prefixes = namespaces(sites)
    for site in sites:
        name = f"storm-{site.number}" if options.plant else "storm"
        wait = options.window / 4 if site.waits else 0
        arguments = [server.url(site.way.port), options.limit, options.window, site.starts, name, wait]
        site.start([*prefixes.get(site, []), *programs[site.language], *map(str, arguments)], errors, shim)


def report(options, sites, counts, began, ended, requests):
    """Prints the results and returns what is wrong."""
    starts = [start for site in sites for start in site.read()]
    window = round(options.window * SECOND)
    admitted = Counter(start.member for start in starts)
    in_time = sum(began <= start.b < ended for start in starts)
    most = most_in_any_window(starts, window)
    over = max(0, most - options.limit)
    print(
        f"{options.limit} per {options.window:g} s for {options.seconds:g} s, {SITES} sites of a {options.kind} server:",
        end=" ",
    )
    print(", ".join(f"{name} {admitted[name]}" for name in LANGUAGES), "admitted,", end=" ")
    print(f"most in any window {most}, over the limit {over},", end=" ")
    print(f"utilisation {in_time / options.limit * window / (ended - began):.1%},", end=" ")
    print(
        f"{requests / max(1, len(starts)):.3f} requests per start;",
        ", ".join(f"{what} {n}" for what, n in counts.items()),
    )
    return [f"{over} over the limit"] if over else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the storm lasts")
    parser.add_argument("--kind", choices=SERVERS, default="redis", help="which server")
    parser.add_argument("--server", choices=("forget", "restart"), help="the fault of the server")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of what is done, and to whom")
    parser.add_argument("--plant", action="store_true", help="break the limit, to show that it is noticed")
    options = parser.parse_args()
    if options.kind == "postgres" and options.server == "restart":
        parser.error(
            "--server restart: a Postgres that starts again has lost nothing (core/tests/servers/fleet.rs kills it)"
        )
    random.seed(options.seed)
    folder = prepare(options.out.resolve(), "fleet-storm")
    # Members never end on their own, so they must not outlive the storm.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    server = SERVERS[options.kind](folder)
    proxy = Proxy(SITES, lambda: server.address)
    sites = [Site(number, way, folder / "starts" / str(number)) for number, way in enumerate(proxy.ways)]
    try:
        begin(sites, options, folder, server)
        gather(sites)
        began = time.monotonic_ns()
        counts = rage(sites, proxy, server, options)
        ended = time.monotonic_ns()
        # The grants of dead sites count for a window.
        gather(sites, ended)
    finally:
        for site in sites:
            if site.member:
                site.member.kill()
    wrong = report(options, sites, counts, began, ended, server.requests())
    sys.exit(f"{'; '.join(wrong)} (--seed {options.seed})" if wrong else 0)


if __name__ == "__main__":
    main()
