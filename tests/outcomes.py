"""Reads what a suite's runner printed: how many tests passed, failed and were skipped, and why each failed."""

import re

# Patterns for passed, failed, skipped.
CARGO = [r"^test result: .*?(\d+) passed", r"^test result: .*?(\d+) failed", r"^test result: .*?(\d+) ignored"]
PYTEST = [r"^(?:.* )?(\d+) passed.* in [\d.]+s", r"^(?:.* )?(\d+) failed.* in [\d.]+s", r"(\d+) skipped.* in [\d.]+s"]
NODE = [r"^. pass (\d+)", r"^. fail (\d+)", r"^. skipped (\d+)"]
PLAIN = [r"^.*: (\d+) passed", r"^.*passed, (\d+) failed", r"^.*failed, (\d+) skipped"]
STORMS = [r"over the limit 0, (utilisation)", r"over the limit ([1-9]\d*)", r"^(?!)"]
# A command that succeeds or not.
CHECK = [r"\A()", r"^(?!)", r"^(?!)"]

# The block of a failed test in the output of each runner.
BLOCKS = [
    r"^(---- \S+ stdout ----\n.*?)(?=^----|^failures:|\Z)",  # cargo test
    r"^(_{3,} .+? _{3,}\n.*?)(?=^_{3,} |^={3,}|\Z)",  # pytest
    r"^(test at .*?)(?=^test at |\Z)",  # node --test, at its end
    r"^(hangs: .*?)^it was ended$",  # hanging.py
    r"^((?:[^\n]*\n){1,6}\S+: FAILED with exit code -?\d+)$",  # tests/rust.py: also a program that printed nothing of its own
]
# The lines that say what failed where a runner prints no block.
LINES = r"^(?:test .* FAILED|thread '.*panicked at .*\n.*|FAILED .*|ERROR .*|✖ .*\n.*|not ok .*|.*: FAILED.*|tests/c\S+:\d+: .*|error\b.*)$"
# Of a long block, the first and the last lines.
FIRST, LAST = 12, 24
MOST = 20


def count(patterns, output):
    """The numbers of passed, failed and skipped tests."""
    found = [re.findall(pattern, output, re.MULTILINE) for pattern in patterns]
    return [sum(int(n) if n.isdigit() else 1 for n in numbers) for numbers in found]


def shortened(block):
    lines = block.rstrip().splitlines()
    return lines if len(lines) <= FIRST + LAST else [*lines[:FIRST], "…", *lines[-LAST:]]


def failures(output, code):
    """A block of lines for each failed test; if there is none, the last lines of a suite that ended with this code."""
    blocks = [block for pattern in BLOCKS for block in re.findall(pattern, output, re.MULTILINE | re.DOTALL)]
    if not blocks and (lines := re.findall(LINES, output, re.MULTILINE)):
        blocks = ["\n".join(lines[-MOST:])]
    blocks = blocks or [f"exit code {code}\n" + "\n".join(output.splitlines()[-LAST:])]
    more = [f"and {len(blocks) - MOST} more"] if len(blocks) > MOST else []
    return ["\n".join(shortened(block)) for block in blocks[:MOST]] + more
