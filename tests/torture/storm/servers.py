"""Servers that a fleet may share, as the fleet's storm needs them: started, killed, made to forget, asked how often they were asked."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[3]


class Redis:
    """A Redis that keeps nothing on disk, and ends with this program."""

    def __init__(self, folder):
        self._folder = folder
        self._asked_before = 0
        self.start()

    def start(self):
        command = [sys.executable, str(ROOT / "tests/fleet/redis.py"), str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        url = urlsplit(self._process.stdout.readline().strip())
        if url.port is None:
            raise SystemExit("no Redis: see above")
        self.address = url.hostname, url.port

    def kill(self):
        """By SIGKILL, which is what it does when its input ends."""
        self._asked_before = self.requests()
        self._process.stdin.close()
        self._process.wait()

    def restart(self):
        """Nothing of what it knew is left."""
        self.kill()
        self.start()

    def forget(self):
        """It goes on, with nothing of what it knew."""
        self.ask("FLUSHALL")

    def url(self, port):
        """How a site asks it by way of a port of this machine."""
        return f"redis://127.0.0.1:{port}/0"

    def requests(self):
        """How often sites have asked for a decision: each is a script."""
        calls = re.findall(r"cmdstat_(?:evalsha|eval):calls=(\d+)", self.ask("INFO commandstats"))
        return self._asked_before + sum(map(int, calls))

    def info(self, section):
        """What it says of itself."""
        lines = self.ask(f"INFO {section}").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def monitor(self, is_watching):
        """What it is asked from when `is_watching` is set, line by line."""
        with socket.create_connection(self.address) as connection, connection.makefile("rb") as lines:
            connection.sendall(b"MONITOR\r\n")
            lines.readline()
            is_watching.set()
            yield from lines

    def ask(self, command):
        """What it answers to a command."""
        with socket.create_connection(self.address) as connection, connection.makefile("rb") as answers:
            connection.sendall(f"{command}\r\n".encode())
            first = answers.readline().decode()
            if first[0] == "-":
                raise SystemExit(f"{command}: {first}")
            return answers.read(int(first[1:])).decode() if first[0] == "$" else first[1:].strip()


class Postgres:
    """A Postgres that ends with this program."""

    def __init__(self, folder):
        self._process = subprocess.Popen([ROOT / "tests/fleet/postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._url = self._process.stdout.readline().strip()
        if not self._url:
            raise SystemExit("no Postgres: see above")
        self.address = parse_qs(urlsplit(self._url).query)["host"][0] + "/.s.PGSQL.5432"

    def forget(self):
        """It goes on, with nothing of what it knew."""
        self._psql("-f", ROOT / "tests/fleet/forget.sql")

    def url(self, port):
        """How a site asks it by way of a port of this machine."""
        return f"postgres://postgres@127.0.0.1:{port}/postgres"

    def requests(self):
        """How often sites have asked for a decision: each is a function."""
        calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname LIKE 'decide\\_%'"
        return int(self._psql("-At", "-c", calls))

    def _psql(self, *arguments):
        return subprocess.run(["psql", "-X", "-q", *arguments, self._url], check=True, capture_output=True, text=True).stdout


SERVERS = {"redis": Redis, "postgres": Postgres}
