"""The command workglow-limit, the same program as in the Cargo package and the C prefix."""

import sys

from ._native import run_command


def main() -> int:
    """Runs the command with this program's arguments and returns the exit code."""
    return run_command(["workglow-limit", *sys.argv[1:]])
