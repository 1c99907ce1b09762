"""A Redis server for one test, on a free port of this machine, with nothing on disk. It ends with the test.

    python tests/fleet/redis.py FOLDER

Prints the server's URL once it answers, and ends it when standard input is closed: also when the process at the other
end of that pipe has died. The server's log goes to FOLDER/redis.log.

Run it, do not import it: as a module it would shadow the client library of the same name.
"""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 30  # seconds after which a server that does not answer counts as stuck
TRIES = 5  # a port that was free may be taken when the server asks for it


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port, server):
    """Returns whether our server answers: another one may have taken the port first."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{server.pid}\r\n".encode() in connection.recv(65536)
    except OSError:
        return False


def start(program, port, folder):
    """Returns the server, or None if it has ended without an answer because the port is taken."""
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
    with open(folder / "redis.log", "ab") as log:
        # In its own session: an interrupt at the terminal is for the test, which then closes our input.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None:
        if answers(port, server):
            return server
        if time.monotonic() > deadline:
            server.kill()
            sys.exit(f"redis-server does not answer after {PATIENCE} s: {folder / 'redis.log'}")
        time.sleep(0.02)
    return None


def main():
    if len(sys.argv) != 2 or not (folder := Path(sys.argv[1]).resolve()).is_dir():
        sys.exit(f"usage: {sys.argv[0]} FOLDER (an existing one, for the log)")
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is missing: apt-get install redis-server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in range(TRIES):
        port = free_port()
        server = start(program, port, folder)
        if server:
            break
    else:
        sys.exit(f"redis-server did not start in {TRIES} tries: {folder / 'redis.log'}")
    try:
        print(f"redis://127.0.0.1:{port}/0", flush=True)
        sys.stdin.read()
    finally:
        server.kill()
        server.wait()


main()
