"""A RabbitMQ server for one test, on free ports of this machine. It ends with the test.

    python tests/fleet/rabbitmq.py FOLDER

Prints the server's URL once it answers, and ends it when standard input is closed: also when the process at the other
end of that pipe has died. The server's data and logs go to FOLDER/rabbitmq.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60  # seconds after which a server that does not answer counts as stuck
TRIES = 5  # a port that was free may be taken when a server asks for it
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # Debian's own; the one on the PATH switches to another user


class Ended(Exception):
    """A server has ended before it answered."""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def serving(command, port, greeting, home, environment):
    """A server that has answered on its port. It ends with all its processes."""
    log = home / f"{Path(command[0]).name}.log"
    with log.open("wb") as file:
        # In its own session: an interrupt at the terminal is for the test, which then closes our input.
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            is_there = False
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(greeting)
                is_there = not greeting or bool(connection.recv(1))
            if server.poll() is not None:
                raise Ended(f"{command[0]} has ended: {log}")
            if is_there:
                break
            if time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not answer: {log}")
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main():
    if len(sys.argv) != 2 or not (folder := Path(sys.argv[1]).resolve()).is_dir():
        sys.exit(f"usage: {sys.argv[0]} FOLDER (an existing one, for what the server keeps)")
    if not Path(PROGRAM).exists():
        sys.exit("RabbitMQ is missing: apt-get install rabbitmq-server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for left in reversed(range(TRIES)):
        try:
            return serve(folder / "rabbitmq")
        except Ended as error:
            if not left:
                sys.exit(str(error))


def serve(home):
    port, distribution, mapper = free_ports(3)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    (home / "plugins").write_text("[].\n")
    environment = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"fleet{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(home),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
        "ERL_EPMD_PORT": str(mapper),
    }
    # Erlang would start its port mapper as a daemon, which outlives the server.
    mapped = ["epmd", "-port", str(mapper), "-address", "127.0.0.1"]
    with (
        serving(mapped, mapper, b"", home, environment),
        serving([PROGRAM], port, b"AMQP\x00\x00\x09\x01", home, environment),
    ):
        print(f"amqp://guest:guest@127.0.0.1:{port}", flush=True)
        sys.stdin.read()


main()
