"""The command workglow-limit: the same program that `cargo install` and the C prefix have."""

import sys

from ._native import run_command


def main() -> int:
    """Runs it with this program's arguments; the exit code."""
    return run_command(["workglow-limit", *sys.argv[1:]])
