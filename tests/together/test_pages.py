"""Stores on kernels whose pages are larger than 4 KiB, as on a Raspberry Pi 5 (16 KiB) and many servers with arm64
(64 KiB).

Once, a store there could not take its 390th key, in any process: it had asked the kernel about 4,096 bytes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KEYS = 3_000

# Starts once for each key, in an order of its own, and tells how many starts there were after each hundred. With
# "count" it starts nothing, and tells how many starts of all keys count.
PROGRAM = f"""
import os, random, sys
import workglow_limit

limiter = workglow_limit.Store(sys.argv[1]).limiter("tenants", "1000/1h")
keys = [f"tenant-{{n}}" for n in range({KEYS})]
random.Random(sys.argv[2]).shuffle(keys)
print(os.sysconf("SC_PAGESIZE"), flush=True)
if sys.argv[2] == "count":
    print(sum(1000 - limiter.peek(key).remaining for key in keys))
else:
    for n, key in enumerate(keys, 1):
        assert limiter.try_acquire(key) is not None
        if n % 100 == 0:
            print(n, flush=True)
"""


@pytest.fixture(scope="module")
def larger_pages(tmp_path_factory):
    """Returns the environment of a process with pages of this many bytes."""
    library = tmp_path_factory.mktemp("pages") / "pages.so"
    source = Path(__file__).with_name("pages.c")
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return lambda pages: {**os.environ, "LD_PRELOAD": str(library), "PAGES": str(pages)}


def begin(url, does, environment=None):
    command = [sys.executable, "-c", PROGRAM, url, does]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def end(process, pages):
    """Returns what a process told last, before it ended well."""
    told, _ = process.communicate()
    assert process.returncode == 0
    said, *counts = told.split()
    assert int(said) == pages
    return int(counts[-1])


@pytest.mark.parametrize("pages", [16_384, 65_536])
def test_processes_share_many_keys_and_one_is_killed(tmp_path, larger_pages, pages):
    url = f"sqlite:{tmp_path}/limits.db"
    victim = begin(url, "victim", larger_pages(pages))
    others = [begin(url, seed, larger_pages(pages)) for seed in "ab"]
    told = [victim.stdout.readline() for _ in range(1 + KEYS // 200)]
    victim.kill()
    rest, _ = victim.communicate()
    starts = int((told + rest.split())[-1]) + sum(end(process, pages) for process in others)
    counted = end(begin(url, "count", larger_pages(pages)), pages)
    # The victim may have started up to a hundred that it did not tell.
    assert starts <= counted <= starts + 100


def test_a_store_moves_to_a_kernel_with_larger_pages(tmp_path, larger_pages):
    url = f"sqlite:{tmp_path}/limits.db"
    usual = os.sysconf("SC_PAGESIZE")
    assert end(begin(url, "a"), usual) == KEYS
    assert end(begin(url, "b", larger_pages(65_536)), 65_536) == KEYS
    assert end(begin(url, "count", larger_pages(16_384)), 16_384) == 2 * KEYS
    assert end(begin(url, "count"), usual) == 2 * KEYS
