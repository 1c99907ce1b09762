"""Counts the instructions of each call with Callgrind, so that the figure does not depend on how busy the machine is. Fails if one takes
more than `instructions.toml` allows: instructions.py [--update].

When a call becomes cheaper, lower its number there. `--update` writes all of them.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import tomllib

# Another compiler, or another processor's memcpy, may need a few more.
TOLERANCE = 1.05
# The caches of no machine in particular: a first and a last level, with lines of 64 bytes.
CALLGRIND = ["valgrind", "--tool=callgrind", "--toggle-collect=measured", "--cache-sim=yes"]
CALLGRIND += ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64"]
PROGRAM = "target/release/instructions"


def measure(case):
    """The instructions and the cache lines from memory that one call takes."""
    calls, name = case
    with tempfile.TemporaryDirectory() as directory:
        result = pathlib.Path(directory) / "callgrind"
        command = [*CALLGRIND, f"--callgrind-out-file={result}.%p", PROGRAM, name, directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ran:
            output = ran.stdout.read()
        if ran.returncode != 0:
            sys.exit(f"{name}: {output}")
        rows = pathlib.Path(f"{result}.{ran.pid}").read_text().splitlines()
        row = {key: rest for key, _, rest in (row.partition(": ") for row in rows)}
        # Callgrind leaves out the zeros at the end.
        totals = dict.fromkeys(row["events"].split(), 0) | dict(
            zip(row["events"].split(), map(int, row["totals"].split()))
        )
    return name, totals["Ir"] / int(calls), (totals["DLmr"] + totals["DLmw"]) / int(calls)


file = pathlib.Path(__file__).with_suffix(".toml")
known = tomllib.loads(file.read_text())["instructions"] if file.exists() else {}
listed = subprocess.run([PROGRAM], capture_output=True, text=True, check=True).stdout
with ThreadPoolExecutor(os.cpu_count()) as pool:
    measured = list(pool.map(measure, (line.split(" ", 1) for line in listed.splitlines())))
counts = {name: count for name, count, _ in measured}

clock = counts["clock"]
print(f"{'':40}{'instructions':>14}{'without clock':>15}{'at most':>9}{'lines of a cold key':>21}")
for name, count, lines in measured:
    cold = f"{lines:.1f}" if name.startswith("cold") else ""
    rest = "" if name == "clock" else f"{count - clock:.0f}"
    print(f"{name:40}{count:14.0f}{rest:>15}{known.get(name, ''):>9}{cold:>21}".rstrip())

if "--update" in sys.argv:
    text = ["# The most instructions per call, including its read of the clock: `make instructions`.", "[instructions]"]
    text += [f'"{name}" = {count:.0f}' for name, count in counts.items()]
    file.write_text("\n".join(text) + "\n")
elif known.keys() != counts.keys():
    sys.exit(f"{file} has other cases: {sorted(known.keys() ^ counts.keys())}")
else:
    # Observers add no instructions to decisions. (Work that is due once a second may fall into one of the two.)
    watched = {name: name.replace("_watched", "") for name in counts if "_watched" in name}
    costs = [
        f"{name}: {counts[name]:.1f} instead of {counts[alone]:.1f}"
        for name, alone in watched.items()
        if counts[name] > counts[alone] * TOLERANCE
    ]
    if costs:
        sys.exit("more instructions with an observer: " + ", ".join(costs))
    more = [
        f"{name}: {counts[name]:.0f} instead of {most}"
        for name, most in known.items()
        if counts[name] > most * TOLERANCE
    ]
    if more:
        sys.exit("more instructions than before: " + ", ".join(more))
