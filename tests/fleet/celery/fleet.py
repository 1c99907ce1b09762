"""Real workers on a real broker, and their logs."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from brokers import settings
from celery import Celery

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "examples/fleet"))

PATIENCE = 60  # seconds after which a worker that is not ready, or does not end, counts as stuck


class Receipt(NamedTuple):
    at: int
    retries: int
    worker: str


@dataclass
class Run:
    a: int
    b: int
    retries: int
    worker: str
    ended: int | None = None


class Log:
    """The records of all processes of all workers so far: each job's receipts and runs, in the order of time."""

    def __init__(self, folder):
        self.ready = 0
        self.receipts, self.runs = defaultdict(list), defaultdict(list)
        for path in Path(folder).glob("*/*.log"):
            latest = {}  # the run of each job in this process, which its end belongs to
            for line in path.read_text().splitlines():
                match line.split():
                    case ["ready"]:
                        self.ready += 1
                    case ["received", job, at, retries]:
                        self.receipts[job].append(Receipt(int(at), int(retries), path.parent.name))
                    case ["started", job, a, b, retries]:
                        latest[job] = Run(int(a), int(b), int(retries), path.parent.name)
                        self.runs[job].append(latest[job])
                    case ["ended", job, at]:
                        latest[job].ended = int(at)
        for receipts in self.receipts.values():
            receipts.sort()
        for runs in self.runs.values():
            runs.sort(key=lambda run: run.b)

    def started(self, job):
        return bool(self.runs.get(job))

    def ended(self, job):
        return any(run.ended for run in self.runs.get(job, ()))


@contextlib.contextmanager
def broker(kind, folder):
    """The URL of a broker that runs during the context: one of `brokers.KINDS`, or "rabbitmq-delayed"."""
    if kind == "filesystem":
        yield f"filesystem://{folder}/broker"
        return
    program, _, queues = kind.partition("-")
    command = [sys.executable, HERE.parent / f"{program}.py", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            if not url:
                raise SystemExit(f"no {program}: see above, or its log in {folder}")
            yield f"{url}{queues and '?queues='}{queues}"
        finally:
            server.stdin.close()


class Worker:
    """One Celery worker with its prefork children, in its own process group."""

    def __init__(self, name, folder, children, environment):
        self.name = name
        (folder / "log" / name).mkdir(parents=True)
        self._errors = folder / f"{name}.err"
        options = f"--pool prefork --concurrency {children} --hostname {name}@fleet --loglevel WARNING"
        alone = "--without-gossip --without-mingle --without-heartbeat"
        command = f"-m celery --quiet -A tasks worker {options} {alone}"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *command.split()], cwd=HERE, stdin=subprocess.DEVNULL, stdout=errors,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | environment | {"FLEET_LOG": str(folder / "log" / name)},
            )  # fmt: skip

    def check(self):
        """Ends the run if the worker has died."""
        code = self._process.poll()
        if code is not None:
            raise SystemExit(f"{self.name} ended with {code}:\n{self._errors.read_text(errors='replace')[-3000:]}")

    def ask_to_stop(self):
        """A warm shutdown: running tasks may end."""
        self._process.terminate()

    def exit_code(self):
        """Returns None if it does not end."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number):
        """Sends a signal to the worker and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self):
        """SIGKILL: no process can clean up."""
        self.signal(signal.SIGKILL)
        self._process.wait()


class Fleet:
    """Some workers on one broker, and a client that sends to them."""

    def __init__(self, folder, broker_url, environments, children):
        """`environments`: the variables for tasks.py, per worker."""
        self._folder, self._url, self._children = folder, broker_url, children
        self._sender = Celery("sender", set_as_current=False)
        self._sender.conf.update(settings(broker_url))
        self.workers = []
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill_all)
            self.join(environments)
            stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._kill_all()
        self._sender.close()

    def _kill_all(self):
        for worker in self.workers:
            worker.kill()

    def join(self, environments):
        """Starts more workers. Returns when they are ready."""
        for environment in environments:
            environment = environment | {"FLEET_BROKER": self._url}
            self.workers.append(Worker(f"worker{len(self.workers) + 1}", self._folder, self._children, environment))
        if self.wait(lambda log: log.ready >= len(self.workers)).ready < len(self.workers):
            raise SystemExit(f"the workers are not ready after {PATIENCE} s: {self._folder}/*.err")

    def stop(self):
        """A warm shutdown of all workers. Returns their exit codes."""
        for worker in self.workers:
            worker.ask_to_stop()
        return [worker.exit_code() for worker in self.workers]

    def kill(self, worker):
        """SIGKILL for one worker and its children. The worker is no longer expected to live."""
        self.workers.remove(worker)
        worker.kill()

    def send(self, task, job, **options):
        self._sender.send_task(f"tasks.{task}", task_id=job, **options)

    def log(self):
        return Log(self._folder / "log")

    def wait(self, condition, seconds=PATIENCE, during=lambda: None):
        """Returns the log as soon as the condition holds, at the latest after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            for worker in self.workers:
                worker.check()
            late = time.monotonic() > deadline
            log = self.log()
            if condition(log) or late:
                return log
            during()
            time.sleep(0.02)
