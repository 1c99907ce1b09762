"""The packages of a platform as they are published, tried as its users have them: the wheel in a Python, the npm packages in a Node, the C
archive with programs that are linked to it, and its command.
"""

import os
import re
import shutil
import sys
import tempfile
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
# The first screen of README.md: Python and Node start twice each, by one file.
FIRST_SCREEN = """
set -eux
rm -f limits.db*
python3 "$1"
node "$2"
"$0" --store sqlite:limits.db peek openai | grep '96 of 100 left'
"""


NODE_TESTS = "bindings/node/test"
NODE_SHORT = [*suites.NODE_SMOKE, f"{NODE_TESTS}/command.test.mjs", f"{NODE_TESTS}/vectors.test.mjs"]
PYTHON_SHORT = [*suites.PYTHON_SMOKE, f"{suites.PYTHON}/test_vectors.py"]
# What Python's tests import.
IMPORTED = ["aiohttp", "django", "httpx", "pytest", "pytest-timeout", "requests"]
# Tests that say nothing of a platform, or cannot run there, each with the reason. (Files of Node; files and tests of Python.)
LEFT_OUT = {
    f"{suites.PYTHON}/test_documented.py::test_every_public_name_has_a_docstring": "it imports the libraries of all integrations",
}


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


def install_python(target, out):
    """Has pip choose the wheel for the platform, and puts it into a folder with what its tests import."""
    python = (userland.programs(target)[-1] / "python3").readlink().name
    tag = NAMES[target][1]
    pinned = (ROOT / "bindings/python/requirements-dev.txt").read_text().split()
    tools = [line for line in pinned if line.split("==")[0] in IMPORTED]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", fresh(out)]
    chosen = ["--only-binary=:all:", f"--platform={tag}", f"--python-version={python.removeprefix('python')}"]
    run(*pip, *chosen, only(f"python/*-abi3-*{tag}*.whl"), *tools)
    # The programs are beside the interpreter, as in an environment. They begin with the Python of the pip that installed them.
    beside, command = out / "bin/python3", out / "bin/workglow-limit"
    beside.symlink_to(userland.programs(target)[-1] / "python3")
    command.write_text(re.sub(r"\A#!.*", f"#!{beside}", command.read_text()))


def install_node(target, out):
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


def first_screen(folder, node):
    """Writes its two programs, word for word. Node looks for the package from where its program is."""
    page = (ROOT / "README.md").read_text()
    paths = {"python": folder / "first.py", "js": node / "bindings/node/first.mjs"}
    for language, path in paths.items():
        path.write_text(re.search(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)[1])
    return map(str, paths.values())


def compiler(target, path):
    """Writes the compiler that links C's tests to the archive's libraries; zig's own library unwinds for it."""
    # zig checks no syntax alone, and a header is the same for any compiler.
    program(
        path,
        'case " $* " in *" -fsyntax-only "*) exec cc "$@" ;; esac\n'
        f'exec "{sys.executable}" -m ziglang cc -target {target.replace("-unknown", "")} "$@" -lunwind',
    )
    return str(path)


def tests(target, out, is_short):
    """What runs of a target: a name, the patterns of its output, a command, its environment and its folder."""
    archive = unpacked(only(f"c/*-{NAMES[target][0]}.tar.gz"), out / "archive")
    python, node, session = out / "python", out / "node", fresh(out / "session")
    install_python(target, python)
    install_node(target, node)
    command, env = str(archive / "bin/workglow-limit"), environment(target, PYTHONPATH=str(python))
    yield "command", CHECK, ["sh", "-c", SESSION, command], env, session
    yield "first screen", CHECK, ["sh", "-c", FIRST_SCREEN, command, *first_screen(session, node)], env, session
    # Its tools are this machine's.
    with_zig = {**environment(target), "PATH": suites.PATH, "CC": compiler(target, out / "cc"), "WGL_TARGET": target}
    yield "C", PLAIN, ["tests/c/run", str(archive / "lib")], with_zig, ROOT
    names = (
        NODE_SHORT
        if is_short
        else sorted(str(path.relative_to(ROOT)) for path in (ROOT / NODE_TESTS).glob("*.test.mjs"))
    )
    names = [name for name in names if name not in LEFT_OUT]
    yield "Node", NODE, ["node", "--test", "--test-timeout=900000", *names], env, node
    names = PYTHON_SHORT if is_short else sorted(str(path) for path in (ROOT / suites.PYTHON).glob("test_*.py"))
    deselected = [f"--deselect={name}" for name in LEFT_OUT]
    # A folder of its own (short: sockets are there): pytest would remove at its end what other runs left, while one of them may do so, too.
    yield (
        "Python",
        PYTEST,
        [
            str(python / "bin/python3"),
            *suites.PYTEST_IN[1:],
            "--rootdir=.",
            f"--basetemp={tempfile.mkdtemp()}/t",
            *names,
            *deselected,
        ],
        env,
        ROOT,
    )
