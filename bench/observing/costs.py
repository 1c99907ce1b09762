"""Measures what a snapshot, a scrape and the page cost with 10,000 limits and 1,000,000 keys.

    python bench/observing/costs.py [--limits 10000] [--keys 1000000] [--bin workglow-limit]

It needs the Python package and the command. It declares the limits in a new sqlite: store, uses each key once (2.4 KB of disk per key),
starts `workglow-limit serve` on that store, and prints the times and sizes of the responses: the first, and the median of five more. In
this process it prints the processor time, too, which does not depend on the load of the machine.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from workglow_limit import Store

ROUNDS = 5


def timed(call):
    began, used = time.perf_counter(), time.process_time()
    size = call()
    return time.perf_counter() - began, time.process_time() - used, size


def report(name, call, pause=0.0, is_here=False):
    times, processor_times, size = [], [], 0
    for _ in range(ROUNDS + 1):
        time.sleep(pause)
        took, used, size = timed(call)
        times.append(took)
        processor_times.append(used)
    here = (
        f", processor {processor_times[0]:.3f} s, then {statistics.median(processor_times[1:]):.3f} s"
        if is_here
        else ""
    )
    print(
        f"{name:40} first {times[0]:6.3f} s, then {statistics.median(times[1:]):6.3f} s{here}, {size / 1e6:.2f} MB",
        flush=True,
    )


def memory(pid, name):
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(name)).split()[1]) / 1024


def processor(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def first_event(url):
    with urllib.request.urlopen(f"{url}api/events?limit=50", timeout=60) as stream:
        read = 0
        for line in stream:
            read += len(line)
            if line.startswith(b"event: look"):
                return read + len(stream.readline())
    raise RuntimeError("the stream has ended")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of all limits together")
    parser.add_argument("--bin", default="workglow-limit", help="the command")
    parser.add_argument("--dir", help="the directory of the store (default: a temporary one)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.dir) as directory:
        url = f"sqlite:{directory}/limits.db"
        limits = Path(directory, "limits.toml")
        limits.write_text("".join(f'"tenant-{i:05}" = "100/10m"\n' for i in range(asked.limits)))
        store = Store(url)
        took, *_ = timed(lambda: store.load(limits) and 0)
        print(f"{asked.limits:,} limits declared in {took:.1f} s")
        began = time.perf_counter()
        each = asked.keys // asked.limits
        for i in range(asked.limits):
            limiter = store.limiter(f"tenant-{i:05}")
            for key in range(each):
                limiter.decide(f"key-{key}")
        print(f"{each * asked.limits:,} keys used once in {time.perf_counter() - began:.1f} s")
        store.flush()
        time.sleep(1.5)  # counts are reported once a second
        for path in ("limits.db", "limits.db-lane"):
            print(f"{path}: {Path(directory, path).stat().st_size / 1e6:.0f} MB")

        for keys in (0, 10):
            report(f"store.snapshot(keys={keys})", lambda: len(store.snapshot(keys=keys).limits), is_here=True)
            report(f"store.metrics(keys={keys})", lambda: len(store.metrics(keys=keys)), is_here=True)
        command = [asked.bin, "--store", url, "--json"]
        report(
            "workglow-limit status --json",
            lambda: len(subprocess.run([*command, "status"], stdout=subprocess.PIPE, check=True).stdout),
        )
        for keys in (0, 10):
            server = subprocess.Popen(
                [*command, "serve", "--listen", "127.0.0.1:0", "--keys", str(keys)], stdout=subprocess.PIPE
            )
            at = json.loads(server.stdout.readline())["listening"]
            get = lambda path: lambda: len(urllib.request.urlopen(at + path, timeout=60).read())
            print(f"serve --keys {keys}")
            report("  GET /metrics, once a second", get("metrics"), 1.1)
            report("  GET /api/snapshot?limit=100", get("api/snapshot?limit=100"), 1.1)
            report("  GET /api/series", get("api/series?limit=tenant-00001"))
            report("  GET /api/history", get("api/history?limit=tenant-00001"))
            report("  the page's first event", lambda: first_event(at))
            before = processor(server.pid)
            time.sleep(20)
            idle = (processor(server.pid) - before) / 20
            stream = urllib.request.urlopen(f"{at}api/events?limit=50", timeout=60)
            stream.readline()
            before = processor(server.pid)
            time.sleep(20)
            print(
                f"  processor time: {idle:.1%} of a core idle, {(processor(server.pid) - before) / 20:.1%} with the page open; "
                f"memory: {memory(server.pid, 'RssAnon'):.0f} MB of its own"
            )
            stream.close()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
