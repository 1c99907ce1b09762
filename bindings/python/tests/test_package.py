"""What is installed: light, typed, and as its stubs say."""

import importlib.metadata

import pytest
from conftest import run

import workglow_limit


def test_the_import_is_light():
    heavy = {"asyncio", "sqlite3", "typing", "datetime", "inspect", "threading"}
    program = """
import sys
before = set(sys.modules)
import workglow_limit
print(*sorted(set(sys.modules) - before))
"""
    imported = set(run(program).split())
    assert "workglow_limit._native" in imported
    assert imported & heavy == set()


def test_the_metadata():
    about = importlib.metadata.metadata("workglow-limit")
    assert about["Version"] == workglow_limit.__version__
    assert about["License-Expression"] == "MIT OR Apache-2.0"
    assert about.get_all("Requires-Dist") == ["celery>=5.4 ; extra == 'celery'"]


def test_all_that_is_public_is_listed():
    public = {name for name in vars(workglow_limit) if not name.startswith("_")} - {"TYPE_CHECKING"}
    lazy = {"CustomLimiter", "JobLimiter"}
    assert public | {"__version__"} | lazy == set(workglow_limit.__all__)
    for name in lazy:
        assert getattr(workglow_limit, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'workglow_limit' has no attribute 'Nothing'"):
        workglow_limit.Nothing


def test_the_stubs_agree(tmp_path, monkeypatch):
    pytest.importorskip("mypy")
    monkeypatch.chdir(tmp_path)  # Where its cache goes.
    said = run("import sys; from mypy.stubtest import main; sys.exit(main())", "workglow_limit")
    assert "Success" in said
    sample = tmp_path / "sample.py"
    sample.write_text("""
from workglow_limit import CompositeLimiter, Limiter, NullLimiter, Permit, RateLimiter, Store
rate = RateLimiter(Store("memory:"), "x", max_executions=1, window_size_in_seconds=1)
limiter: Limiter = CompositeLimiter([NullLimiter(), rate])
permit: Permit | None = limiter.try_acquire("k", weight=2)
@limiter.limit(key=lambda tenant: tenant)
async def call(tenant: str) -> int:
    with await limiter.acquire_async(tenant, timeout=1.5) as permit:
        permit.complete()
    return 5
place = limiter.reserve(max_wait=60)
if place is not None:
    again: Permit = limiter.present(place.to_text())
    again.settle(3) if again.started else again.cancel()
several = RateLimiter(Store("memory:", on_error="deny", durability="commit"), "x", windows=[(100, 60), (5, 1.5)])
async def main() -> int:
    return await call("k")
""")
    mypy = "import sys; from mypy.__main__ import console_entry; console_entry()"
    assert "Success" in run(mypy, "--strict", sample)
