"""Times a decision in every language, beside governor and beside a SQLite transaction, and prints ratios.

The programs run in turn, round after round, so that all see the same weather; the table shows the median over rounds.
"""

import subprocess
import sys
import tempfile
from collections import defaultdict
from statistics import median

ROUNDS = 7


def main(programs):
    figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(ROUNDS):
            print(f"\rround {number + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
            for program in programs:
                command = [word.replace("DIRECTORY", directory) for word in program.split()]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                for line in output.splitlines():
                    case, ns = line.split("\t")
                    figures[case].append(float(ns))
    print("\r", end="", file=sys.stderr)
    medians = {case: median(values) for case, values in figures.items()}
    governor = medians["governor admit, monotonic clock"]
    tsc = medians["governor admit"]
    transaction = medians["transaction admit"]
    print("One process, one key. ns: median of a decision over all rounds.")
    print("× governor: against an admission by governor, on the kernel's monotonic clock and on its own TSC clock.")
    print("transaction ÷: how many of it fit into the same exact log's admission in one SQLite transaction.\n")
    print(f"{'':34}{'ns':>9}{'× governor':>12}{'× (TSC)':>10}{'transaction ÷':>15}")
    for case, ns in sorted(medians.items(), key=lambda item: (item[0].split()[0] in ("governor", "transaction"), item[0])):
        print(f"{case:34}{ns:9.0f}{ns / governor:12.2f}{ns / tsc:10.2f}{transaction / ns:15.0f}")


main(sys.argv[1:])
