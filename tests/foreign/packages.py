"""The packages of a platform as they are published, tried as its users have them: the wheel in a Python, the npm packages in a Node, the C
archive with programs that are linked to it, and its command.
"""

import os
import shutil
import sys
from pathlib import Path

import run as suites
import userland
from cache import program, run
from outcomes import CHECK, NODE, PLAIN, PYTEST

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "target/dist/all"
# By target: the package's name in bindings/node/lib/platforms.cts, and the tag of its wheels.
NAMES = {
    "x86_64-unknown-linux-musl": ("linux-x64-musl", "musllinux_1_2_x86_64"),
    "aarch64-unknown-linux-gnu": ("linux-arm64-gnu", "manylinux_2_17_aarch64"),
}
SESSION = """
set -eux
"$0" --version
printf 'openai = "20/1m + 5 concurrent"\\nmail = "50/1h"\\n' >limits.toml
"$0" --store sqlite:limits.db load --create limits.toml
"$0" --store sqlite:limits.db peek openai tenant-7 | grep '5 of 5 left'
"$0" --store sqlite:limits.db override mail 100/1h
"$0" --store sqlite:limits.db show mail | grep 100/1h
"$0" --store sqlite:limits.db lift mail
"$0" --store sqlite:limits.db verify
"""


def build(targets, env):
    """Builds them, and prints the name and the size of each file."""
    run("node", "scripts/dist-all.mjs", *(NAMES[target][0] for target in targets), cwd=ROOT, env=env)
    for path in sorted(DIST.glob("*/*")):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.relative_to(ROOT)}", flush=True)


def only(pattern):
    """The only package of that name."""
    (found,) = DIST.glob(pattern)
    return found


def fresh(folder):
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def unpacked(archive, folder):
    """Unpacks an archive, all of which is in one folder, into a new folder."""
    run("tar", "-xzf", archive, "--strip-components=1", "-C", fresh(folder))
    return folder


def environment(target, **more):
    """A target's programs come first on the path."""
    path = os.pathsep.join([*map(str, userland.programs(target)), suites.PATH])
    return {**os.environ, "NO_COLOR": "1", "PATH": path, **more}


def for_python(target, out):
    """Has pip choose the wheel for the platform, and put it into a folder with what tests it."""
    python = (userland.programs(target)[-1] / "python3").readlink().name
    tag = NAMES[target][1]
    lines = (ROOT / "bindings/python/requirements-dev.txt").read_text().split()
    tools = [line for line in lines if line.startswith(("pytest==", "pytest-timeout=="))]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", fresh(out)]
    chosen = ["--only-binary=:all:", f"--platform={tag}", f"--python-version={python.removeprefix('python')}"]
    run(*pip, *chosen, only(f"python/*-abi3-*{tag}*.whl"), *tools)
    tests = [*suites.PYTHON_SMOKE, f"{suites.PYTHON}/test_vectors.py"]
    return ["python3", *suites.PYTEST_IN[1:], *tests], environment(target, PYTHONPATH=str(out)), ROOT


def for_node(target, out):
    """A tree like this one, where the package is as it is published and finds its native code as an optional dependency."""
    name = NAMES[target][0]
    here, there = ROOT / "bindings/node", fresh(out) / "bindings/node"
    # This machine may not be able to build the entry for browsers.
    run("node", here / "scripts/pack.mjs", out, "main", "without-web", stdout=-1)
    (main,) = out.glob("*.tgz")
    unpacked(main, there)
    unpacked(only(f"npm/*-{name}-*.tgz"), out / "node_modules/@workglow-limit" / name)
    shutil.copytree(here / "test", there / "test")
    for path in ("docs", "tests", "bindings/node/node_modules"):
        (out / path).symlink_to(ROOT / path)
    tests = [*suites.NODE_SMOKE, "bindings/node/test/command.test.mjs", "bindings/node/test/vectors.test.mjs"]
    return ["node", "--test", "--test-timeout=900000", *tests], environment(target), out


def for_c(target, archive, out):
    """The compiler that links the tests to the archive's libraries; zig's own library unwinds for it."""
    # zig checks no syntax alone, and a header is the same for any compiler.
    program(
        out / "cc",
        'case " $* " in *" -fsyntax-only "*) exec cc "$@" ;; esac\n'
        f'exec "{sys.executable}" -m ziglang cc -target {target.replace("-unknown", "")} "$@" -lunwind',
    )
    env = {**environment(target), "PATH": suites.PATH, "CC": str(out / "cc"), "WGL_TARGET": target}
    return ["tests/c/run", str(archive / "lib")], env, ROOT


def tests(target, out):
    """What runs of a target: a name, the patterns of its output, a command, its environment and its folder."""
    with_c = unpacked(only(f"c/*-{NAMES[target][0]}.tar.gz"), out / "archive")
    yield (
        "command",
        CHECK,
        ["sh", "-c", SESSION, str(with_c / "bin/workglow-limit")],
        environment(target),
        fresh(out / "session"),
    )
    yield "C", PLAIN, *for_c(target, with_c, out)
    yield "Node", NODE, *for_node(target, out / "node")
    yield "Python", PYTEST, *for_python(target, out / "python")
