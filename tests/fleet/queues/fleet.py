"""Two real workers of a queue on a real broker, their client, and their logs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BIN = Path(sys.executable).parent
sys.path.append(str(ROOT / "examples/fleet"))

PATIENCE = 60  # seconds after which a process that is not ready counts as stuck
WORKERS = 2
HAS_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists()

#: The command of a worker of each queue, with ours and with its usual limiter.
COMMANDS = {
    "dramatiq": lambda who, broker: [BIN / "dramatiq", "dramatiq_jobs", "--processes", "1", "--threads", "4"],
    "rq": lambda who, broker: [
        BIN / "rq", "worker", "--url", broker, "--quiet", "--path", HERE, "--config", "rq_settings", "fleet",
        *(["--worker-class", "workglow_limit.rq.LimitedWorker"] if who == "ours" else ["--with-scheduler"]),
    ],
    "arq": lambda who, broker: [BIN / "arq", "arq_jobs.WorkerSettings"],
    "taskiq": lambda who, broker: [BIN / "taskiq", "worker", "taskiq_jobs:broker", "--workers", "1", "--max-async-tasks", "10"],
}  # fmt: skip


class Start(NamedTuple):
    a: int
    b: int
    attempts: int
    worker: str
    process: int


class Log:
    """The records of all processes so far."""

    def __init__(self, path):
        self.starts, self.ends, self.limited, self.is_sending = defaultdict(list), {}, 0, False
        for line in path.read_text().splitlines() if path.exists() else ():
            match line.split():
                case ["started", job, a, b, attempts, worker, process]:
                    self.starts[job].append(Start(int(a), int(b), int(attempts), worker, int(process)))
                case ["ended", job, at]:
                    self.ends[job] = int(at)
                case ["limited", *_]:
                    self.limited += 1
                case ["sender"]:
                    self.is_sending = True

    @property
    def ended(self):
        return self.ends.keys()


@contextlib.contextmanager
def server(kind, folder):
    """The URL of a server that runs during the context: "redis" or "rabbitmq"."""
    command = [sys.executable, HERE.parent / f"{kind}.py", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise SystemExit(f"no {kind}: see above, or its log in {folder}")
            yield url
        finally:
            process.stdin.close()


class Fleet:
    """Two workers of one queue, and a process that sends to them."""

    def __init__(
        self, folder, queue, who, broker, redis_url, *, limit, window, policy=None, job_seconds=0.02, plant=False
    ):
        self.folder, self._stack = folder, contextlib.ExitStack()
        policy = policy or f"{limit}/{window}s"
        environment = os.environ | {
            "FLEET_FOLDER": str(folder),
            "FLEET_WHO": who,
            "FLEET_BROKER": broker,
            "FLEET_REDIS": redis_url,
            "FLEET_LIMIT": str(limit),
            "FLEET_WINDOW": str(window),
            "FLEET_POLICY": policy,
            "FLEET_JOB_SECONDS": str(job_seconds),
            "FLEET_STORE": "memory:" if plant else f"sqlite:{folder}/limits.db",
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.workers = []
        with contextlib.ExitStack() as stack:
            for number in range(WORKERS):
                self.workers.append(self._start(COMMANDS[queue](who, broker), f"worker{number}", environment, stack))
            self._sender = self._start(
                [sys.executable, f"{queue}_jobs.py"], "sender", environment, stack, stdin=subprocess.PIPE
            )
            self._stack = stack.pop_all()

    def _start(self, command, name, environment, stack, stdin=subprocess.DEVNULL):
        with open(self.folder / f"{name}.err", "wb") as errors:
            process = subprocess.Popen(
                list(map(str, command)), cwd=HERE, env=environment, stdin=stdin, stdout=errors, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        stack.callback(self._end, process)
        return process

    @staticmethod
    def _end(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self._stack.close)
            self._wait_until_ready()
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _wait_until_ready(self):
        """Waits until both workers have done a job without a limit."""
        sent = time.monotonic()
        for number in range(int(PATIENCE / 0.1)):
            log = self.log()
            if len({starts[0].worker for job, starts in log.starts.items() if job.startswith("warm")}) == WORKERS:
                return
            ended = [process for process in (*self.workers, self._sender) if process.poll() is not None]
            if ended or time.monotonic() > sent + PATIENCE:
                break
            if log.is_sending:
                for part in range(4):
                    self.send("free", f"warm-{number}-{part}")
            time.sleep(0.1)
        raise SystemExit(f"the workers ended, or are not ready after {PATIENCE} s: {self.errors()}")

    def errors(self):
        return "\n".join(
            f"--- {path} ---\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.err")
        )

    def send(self, kind, name):
        self._sender.stdin.write(f"{kind} {name}\n".encode())
        self._sender.stdin.flush()

    def kill_that_ran(self, job):
        """SIGKILL for the worker that runs this job, with all its processes. (A work horse of RQ has its own group.)"""
        process = self.log().starts[job][0].process
        worker = next(worker for worker in self.workers if os.getsid(worker.pid) == os.getsid(process))
        for child in (process, worker.pid):
            os.killpg(os.getpgid(child), signal.SIGKILL)
        worker.wait()

    def log(self):
        return Log(self.folder / "log")

    def wait(self, condition, seconds=PATIENCE, during=lambda: None):
        """Returns the log as soon as the condition holds, at the latest after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            late = time.monotonic() > deadline
            log = self.log()
            if condition(log) or late:
                return log
            during()
            time.sleep(0.02)


@contextlib.contextmanager
def fleet(folder, queue, who, broker="redis", **options):
    """A fleet on its own broker."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        redis_url = stack.enter_context(server("redis", folder))
        broker_url = redis_url if broker == "redis" else stack.enter_context(server(broker, folder))
        yield stack.enter_context(Fleet(folder, queue, who, broker_url, redis_url, **options))
