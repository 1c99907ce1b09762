"""Servers that a fleet may share, for the fleet's storm: it starts, kills and wipes them, and counts their requests."""

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
        """Kills it with SIGKILL, which it sends itself when its input ends."""
        self._asked_before = self.requests()
        self._process.stdin.close()
        self._process.wait()

    def restart(self):
        """Deletes all its data."""
        self.kill()
        self.start()

    def forget(self):
        """Deletes all its data while it runs."""
        self.ask("FLUSHALL")

    def url(self, port):
        """Returns the address for a site that connects through a port of this machine."""
        return f"redis://127.0.0.1:{port}/0"

    def requests(self):
        """Returns how often sites have asked for a decision: each is a script."""
        calls = re.findall(r"cmdstat_(?:evalsha|eval):calls=(\d+)", self.ask("INFO commandstats"))
        return self._asked_before + sum(map(int, calls))

    def info(self, section):
        """Returns its report on itself."""
        lines = self.ask(f"INFO {section}").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def monitor(self, is_watching):
        """Yields its requests, line by line, from when `is_watching` is set."""
        with socket.create_connection(self.address) as connection, connection.makefile("rb") as lines:
            connection.sendall(b"MONITOR\r\n")
            lines.readline()
            is_watching.set()
            yield from lines

    def ask(self, command):
        """Returns its answer to a command."""
        with socket.create_connection(self.address) as connection, connection.makefile("rb") as answers:
            connection.sendall(f"{command}\r\n".encode())
            first = answers.readline().decode()
            if first[0] == "-":
                raise SystemExit(f"{command}: {first}")
            return answers.read(int(first[1:])).decode() if first[0] == "$" else first[1:].strip()


class Postgres:
    """A Postgres that ends with this program."""

    def __init__(self, folder):
        self._process = subprocess.Popen(
            [ROOT / "tests/fleet/postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._url = self._process.stdout.readline().strip()
        if not self._url:
            raise SystemExit("no Postgres: see above")
        self.address = parse_qs(urlsplit(self._url).query)["host"][0] + "/.s.PGSQL.5432"

    def forget(self):
        """Deletes all its data while it runs."""
        self._psql("-f", ROOT / "tests/fleet/forget.sql")

    def url(self, port):
        """Returns the address for a site that connects through a port of this machine."""
        return f"postgres://postgres@127.0.0.1:{port}/postgres"

    def requests(self):
        """Returns how often sites have asked for a decision: each is a function."""
        calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname LIKE 'decide\\_%'"
        return int(self._psql("-At", "-c", calls))

    def _psql(self, *arguments):
        return subprocess.run(
            ["psql", "-X", "-q", *arguments, self._url], check=True, capture_output=True, text=True
        ).stdout


SERVERS = {"redis": Redis, "postgres": Postgres}
