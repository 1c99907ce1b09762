"""Counts the instructions of each call, and fails if one takes more than `instructions.toml` allows: instructions.py [--update].

When a call becomes cheaper, lower its number there. `--update` writes all of them.
"""

import json
import os
import pathlib
import subprocess
import sys

import tomllib

CALLS = 800  # As in benches/instructions.rs.
# Another compiler, or another processor's memcpy, may need a few more.
TOLERANCE = 1.05

file = pathlib.Path(__file__).with_suffix(".toml")
known = tomllib.loads(file.read_text())["instructions"] if file.exists() else {}
command = "cargo bench --quiet -p workglow-limit-bench --bench instructions -- --output-format=json"
runner = pathlib.Path("target/tools/bin/gungraun-runner").absolute()
ran = subprocess.run(command.split(), capture_output=True, text=True, env=os.environ | {"GUNGRAUN_RUNNER": str(runner)})
if ran.returncode != 0:
    sys.exit(ran.stdout + ran.stderr)
counts, lines = {}, {}
for line in ran.stdout.splitlines():
    one = json.loads(line)
    metrics = one["profiles"][0]["data"]["total"]["metrics"]
    value = lambda name: metrics[name]["values"]["new"] / CALLS
    name = " ".join([one["function_name"], *one.get("id", "").split("_")]).rstrip()
    counts[name], lines[name] = value("Ir"), value("DLmr") + value("DLmw")

clock = counts["clock"]
print(f"{'':30}{'instructions':>14}{'without clock':>15}{'at most':>9}{'lines of a cold key':>21}")
for name, count in counts.items():
    cold = f"{lines[name]:.1f}" if name.startswith("cold") else ""
    rest = "" if name == "clock" else f"{count - clock:.0f}"
    print(f"{name:30}{count:14.0f}{rest:>15}{known.get(name, ''):>9}{cold:>21}")

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
