"""Runs the blocks of a chain in a new folder, with the built packages. See README.md."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pages import program

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

import rust

# Read once: pytest writes to it while threads start programs.
ENVIRONMENT = dict(os.environ)
PREFIX = ROOT / "target/dist/c"
# The folders with our installed package, and with others that the tests of the bindings and queues have installed.
OURS = ROOT / "target/demo/node_modules"
OTHERS = [*ROOT.glob("tests/fleet/*/node_modules"), ROOT / "bindings/node/node_modules"]
LONGEST = 60
SPAWNING, INSTALLING = threading.Lock(), threading.Lock()

# The file that a block is written to. Blocks of the first kind that follow each other are one program.
SCRIPTS = {"python": "snippet.py", "js": "snippet.mjs", "ts": "snippet.mts", "sh": "snippet.sh"}
FILES = SCRIPTS | {"c": "snippet.c", "cpp": "snippet.cpp", "rust": "snippet.rs", "toml": "limits.toml",
                   "json": "snippet.json", "cmake": "CMakeLists.txt", "console": "snippet.console"}  # fmt: skip


class Failed(Exception):
    """A block that failed. The message has the reason."""


def programs(chain):
    """Returns the steps of a chain, in order: lists of blocks that form one file, or a `text` with the output of the last one."""
    steps = []
    for block in chain:
        if "not run" in block.marks:
            continue
        last = steps[-1][-1] if steps else None
        same = last and last.language == block.language and last.marks.get("file") == block.marks.get("file")
        if same and block.language in SCRIPTS and "background" not in last.marks | block.marks:
            steps[-1].append(block)
        else:
            steps.append([block])
    return steps


def run_chain(chain, rust):
    """Runs a chain. Returns a text for each failed block, by its place in the page."""
    wrong, printed, left = {}, "", {}
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="snippet-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        redis, postgres = redis_for(chain, folder, stack), postgres_for(chain, stack)
        swap = lambda text: postgres(redis(text))
        env = environment(folder)
        if any(block.language in ("js", "ts") for block in chain):
            modules(folder)
        for step in programs(chain):
            block = step[0]
            try:
                if wrong:
                    raise Failed(f"not reached: {next(iter(wrong))} failed")
                if "prints" in block.marks:
                    compare(printed, block.text)
                    continue
                if block.language not in FILES:
                    known = ", ".join(FILES)
                    raise Failed(f"no way to run “{block.language}”; there are {known}, and text for what is not code")
                # A background program may not have read all of its file yet, so it gets a file of its own.
                usual = ("background-" if "background" in block.marks else "") + FILES[block.language]
                path = folder / block.marks.get("file", usual)
                path.write_text(swap(program(step)))
                if block.language == "console":
                    session(swap(block.text), folder, env)
                elif "background" in block.marks:
                    left[block.where] = background(command(block, path, env, rust), folder, env, stack)
                elif made := command(block, path, env, rust):
                    printed = execute(made, folder, env)
            except (Failed, OSError) as error:
                log = "".join(f"\n--- in the background ---\n{file.read_text()}" for _, file in left.values())
                wrong |= {part.where: f"{error}{log}" for part in step}
        for where, (process, file) in left.items():
            if process.poll():
                wrong[where] = f"it ended with {process.returncode}\n{file.read_text()}"
    return wrong


def command(block, path, env, rust):
    """Returns the command that runs a file, after compiling it; None for a file that is only checked."""
    match block.language:
        case "python":
            return [sys.executable, path.name]
        case "js":
            return ["node", path.name]
        case "sh":
            return ["bash", "-euo", "pipefail", path.name]
        case "ts":
            options = {"strict": True, "module": "nodenext", "target": "es2022", "lib": ["es2023", "esnext.disposable"]}
            options |= {"types": ["node"], "skipLibCheck": False}
            (path.parent / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": [path.name]}))
            execute(["node_modules/typescript/bin/tsc"], path.parent, env)
            return ["node", path.with_suffix(".mjs" if path.suffix == ".mts" else ".js").name]
        case "c" | "cpp":
            compiler, standard = ("cc", "c11") if block.language == "c" else ("c++", "c++17")
            query = ["pkg-config", "--cflags", "--libs", "workglow_limit"]
            flags = execute(query, path.parent, env).split()
            made = [compiler, f"-std={standard}", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", path.name, *flags]
            execute([*made, "-pthread", f"-Wl,-rpath,{PREFIX / 'lib'}", "-o", "program"], path.parent, env)
            return ["./program"]
        case "rust":
            return [rust(block)]
        case "toml":
            load = "import sys, workglow_limit as w; assert w.Store('memory:').load(sys.argv[1])"
            execute([sys.executable, "-c", load, path.name], path.parent, env)
        case "json":
            try:
                json.loads(path.read_text())
            except ValueError as error:
                raise Failed(f"not JSON: {error}") from None
    return None


def environment(folder):
    """Returns an environment with the built packages, without a network and the user's files."""
    nowhere = "http://127.0.0.1:9"
    env = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(("PYTHON", "NODE_"))}
    env |= {
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "no_proxy": "localhost,127.0.0.1",
        "CARGO_NET_OFFLINE": "true",
    }
    env |= {"HOME": str(folder), "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error:::__main__"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "C_FORCE_ROOT": "1"}
    env |= {"PKG_CONFIG_PATH": str(PREFIX / "lib/pkgconfig"), "CMAKE_PREFIX_PATH": str(PREFIX)}
    return env


def modules(folder):
    """Makes the folder that `npm install` of our package and of others would make: a link to one that all chains share."""
    with INSTALLING:
        (folder / "node_modules").symlink_to(f"{installed().name}/node_modules")


@functools.cache
def installed():
    """Returns a `node_modules` of our package and of others, which is removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="snippets-")
    made = Path(folder.name, "node_modules")
    # A copy, because ours searches for others from its real path, and not from a link.
    copy = os.link if OURS.stat().st_dev == made.parent.stat().st_dev else shutil.copy
    shutil.copytree(OURS, made, copy_function=copy)
    for package in (path for place in OTHERS if place.exists() for path in place.iterdir() if path.name[0] != "."):
        inside = [made / package.name / path.name for path in package.iterdir()] if package.name[0] == "@" else []
        for name in inside or [made / package.name]:
            name.parent.mkdir(exist_ok=True)
            if not name.exists():
                name.symlink_to(package / name.name if inside else package)
    return folder


REDIS = r"redis://localhost|\b6379\b"
POSTGRES = "postgres://localhost/app"


def lacks(chain):
    """Returns a program that the blocks of a chain need and this machine lacks, or None."""
    text = "".join(f"{block.language}\n{text}\n" for block in chain for text in block.lines.values())
    needs = {
        "redis-server": REDIS,
        "psql": POSTGRES,
        "cmake": r"^cmake$",
        "sqlite3": r"\$ sqlite3 ",
        "pkg-config": r"^c(pp)?$",
        "c++": r"^cpp$",
    }
    found = (name for name, words in needs.items() if re.search(words, text, re.MULTILINE) and not shutil.which(name))
    return next(found, None)


def redis_for(chain, folder, stack):
    """Starts a Redis if a chain names one. Returns a function that replaces its address in a text."""
    if not any(re.search(REDIS, text) for block in chain for text in block.lines.values()):
        return lambda text: text
    log = folder / ".redis"
    log.mkdir()
    server = spawn(
        [sys.executable, ROOT / "tests/fleet/redis.py", log], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(server.wait)
    stack.callback(server.stdin.close)  # It ends with its input.
    port = re.search(r":(\d+)", server.stdout.readline())[1]
    return lambda text: re.sub(r"\b6379\b", port, re.sub(r"redis://localhost(?!:)", "redis://localhost:6379", text))


def postgres_for(chain, stack):
    """Does the same for Postgres."""
    if not any(POSTGRES in text for block in chain for text in block.lines.values()):
        return lambda text: text
    server = spawn([ROOT / "tests/fleet/postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(server.wait)
    stack.callback(server.stdin.close)
    url = server.stdout.readline().strip()
    return lambda text: text.replace(POSTGRES, url)


def spawn(made, **options):
    """Calls Popen, and repeats it after a spurious EFAULT of the kernel, seen when several threads start programs at once."""
    for _ in range(3):
        with contextlib.suppress(OSError), SPAWNING:
            return subprocess.Popen(made, **options)
    with SPAWNING:
        return subprocess.Popen(made, **options)


def execute(made, folder, env):
    """Runs a command to its end, and returns its output."""
    shown = " ".join(map(str, made))
    process = spawn(
        made, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, complained = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise Failed(f"{shown}: not done after {LONGEST} s\n{''.join(map(str, process.communicate()))}") from None
    if process.returncode:
        raise Failed(f"{shown}: ended with {process.returncode}\n{printed}{complained}")
    return printed


def background(made, folder, env, stack):
    """Starts a program that runs until the chain is done. Returns it, and the file of its output."""
    file = Path(tempfile.mkstemp(prefix="snippet-log-")[1])
    stack.callback(file.unlink)
    with file.open("w") as log:
        process = spawn(
            made, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def end():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    stack.callback(end)
    return process, file


def compare(printed, promised):
    if printed != promised:
        raise Failed(f"it printed\n{printed}where the page has\n{promised}")


def session(text, folder, env):
    """Runs commands after `$ `, and compares their output if the page has one. Digits may differ, because times do."""
    for typed, promised in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        try:
            printed = execute(["bash", "-c", typed], folder, env)
        except Failed:  # Celery's workers have a second to answer, which is little on a busy machine.
            printed = execute(["bash", "-c", typed], folder, env)
        if promised:
            compare(*(re.sub(r"\d", "0", words) for words in (printed, promised)))


class Rust:
    """Compiles Rust blocks, each as a program that links the core as the Rust tests have built it."""

    def __init__(self, blocks, folder):
        self.blocks, self.folder, self.lock = blocks, Path(folder), threading.Lock()

    def __call__(self, block):
        with self.lock:
            failures = self.build()
        name = name_of(block)
        if failures[name]:
            raise Failed(f"rustc: {failures[name]}")
        return self.folder / name

    @functools.cache  # noqa: B019, it lives as long as the tests
    def build(self):
        found = rust.libraries(["workglow_limit", "tokio", "tower_layer", "tower_service"])
        links = ["-L", f"dependency={found['workglow_limit'].parent}", "--out-dir", self.folder]
        for name, library in found.items():
            links += ["--extern", f"{name}={library}"]

        def compiled(block):
            source = self.folder / f"{name_of(block)}.rs"
            source.write_text(program([block]))
            command = ["rustc", "--edition=2024", "--crate-type=bin", *links, source]
            built = subprocess.run(command, capture_output=True, text=True)
            return name_of(block), built.stderr if built.returncode else ""

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(pool.map(compiled, self.blocks))


def name_of(block):
    return "snippet-" + re.sub(r"\W+", "-", block.where)
