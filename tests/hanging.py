"""Runs a command that may hang. Then the stacks of its threads are printed, and it is ended with everything that it started.

    python3 tests/hanging.py SECONDS COMMAND …

It hangs if that many seconds have passed since it began, or, if its output is a file, since that last grew.
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# The exit code of a command that hung, as `timeout` has it.
HUNG = 124
# Of one process: a debugger's patience, and the most lines of its threads' stacks.
PATIENCE, LINES = 60, 200
# Of a Python program that prints its stacks and ends.
PRINTING = 30


def fields(pid):
    """The fields of /proc/PID/stat after the program's name: its state first, then its parent. None if it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return None


def has_ended(pid):
    """Whether a process is gone, or only waits for its parent to notice its end."""
    return (fields(pid) or "Z")[0] in "ZX"


def descendants(pid):
    """The process and all that it started, each before its own. (Without those whose parent has ended.)"""
    parents = {int(path.name): fields(path.name) for path in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for parent in found:
        found += sorted(child for child, its in parents.items() if its and int(its[1]) == parent)
    return found


def by_a_debugger(pid):
    """The lines of the threads' functions; none if there is no debugger, or if it may not look."""
    if gdb := shutil.which("gdb"):
        command = [gdb, "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all backtrace 30"]
    elif eu_stack := shutil.which("eu-stack"):
        command = [eu_stack, "-n", "30", "-p", str(pid)]
    else:
        return []
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": PATIENCE}
    try:
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", **options).stdout
    except subprocess.TimeoutExpired:
        return []
    return [line for line in said.splitlines() if line.startswith(("Thread", "#", "TID"))][:LINES]


def by_the_kernel(pid):
    """A line for each thread: its name, its state, and where in the kernel it is."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        state = (fields(f"{pid}/task/{thread.name}") or "?")[0]
        yield f"thread {thread.name}: {(thread / 'comm').read_text().strip()}, {state}, {(thread / 'wchan').read_text()}"


def stacks(pid):
    """What the threads of a process do."""
    name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return [f"process {pid}: {name[:300]}", *(by_a_debugger(pid) or by_the_kernel(pid))]


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(pid):
    """Ends a process and all that it started. Returns lines about what they did. A Python program prints its own stacks."""
    pids, lines = descendants(pid), []
    for each in pids:
        with contextlib.suppress(OSError):
            lines += stacks(each)
            if "python" in os.path.basename(os.readlink(f"/proc/{each}/exe")):
                # pytest has a handler for this, which prints the stacks to its own output.
                os.kill(each, signal.SIGABRT)
                until = time.monotonic() + PRINTING
                while not has_ended(each) and time.monotonic() < until:
                    time.sleep(0.05)
    # Those that are stopped start no more.
    stopped = set()
    while new := set(descendants(pid)) - stopped:
        stopped |= new
        signal_all(new, signal.SIGSTOP)
    signal_all({*pids, *stopped}, signal.SIGKILL)
    return lines


def run(command, output, seconds, until=math.inf, **options):
    """Runs a command whose output goes to a file, at most until that moment of the monotonic clock. Returns its exit code, and its
    seconds of time and of a processor."""
    began = grown = time.monotonic()
    size, usage = 0, None
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options)
    is_ended = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        now = time.monotonic()
        if pid:
            break
        last, size = size, os.fstat(output.fileno()).st_size
        grown = now if size != last else grown
        why = (
            f"has printed nothing for {seconds} s"
            if now - grown > seconds
            else "there is no time left"
            if now > until
            else ""
        )
        if why and not is_ended:
            is_ended = True
            lines = [f"hangs: {' '.join(map(str, command))[:300]}: {why}", *end(process.pid), "it was ended"]
            os.write(output.fileno(), ("\n" + "\n".join(lines) + "\n").encode())
        time.sleep(0.05)
    process.returncode = HUNG if is_ended else os.waitstatus_to_exitcode(status)
    return process.returncode, now - began, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], sys.stdout, float(sys.argv[1]))[0])
