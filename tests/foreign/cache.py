"""What is fetched and made once per machine, beside what `.ci/cache` keeps. It may be removed at any time."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workglow-limit" / "foreign"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Debian's releases. The newer one has a musl that loads what Alpine compiles, and an emulator that runs Node.
OLDER, NEWER = "bookworm", "trixie"


def run(*command, **options):
    """Runs a command that must succeed, and returns what it printed if `stdout` is a pipe."""
    return subprocess.run([str(word) for word in command], check=True, text=True, **options).stdout


def listed(folder):
    """A line for each file below a folder: its size and its path. (Without what a Python there compiles when it runs.)"""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.name != ".whole")
    files = (path for path in files if path.suffix != ".pyc")
    return "\n".join(sorted(f"{path.stat().st_size} {path.relative_to(folder)}" for path in files))


def once(name, make, *arguments):
    """A folder of the cache that `make(folder, *arguments)` fills. It is made again if a file is missing or has another size."""
    folder = CACHE / name
    whole = folder / ".whole"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Another process may make it at this moment.
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists() or whole.read_text() != listed(folder):
            print(f"making {folder}", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder, *arguments)
            whole.write_text(listed(folder))
    return folder


class Debian:
    """Debian's packages for a processor, as a machine with nothing installed sees them. This needs no rights and installs nothing."""

    def __init__(self, cpu="amd64", release=OLDER):
        root = CACHE / f"apt-{release}-{cpu}"
        self.archives = root / "cache/archives"
        for folder in (root / "state/lists/partial", self.archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        places = [("debian", release), ("debian-security", f"{release}-security")]
        lines = [f"deb [signed-by={KEYS}] http://deb.debian.org/{place} {suite} main\n" for place, suite in places]
        (root / "sources.list").write_text("".join(lines))
        (root / "status").touch()
        own = {
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": root / "state",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "APT::Architecture": cpu,
            "APT::Architectures": cpu,
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Debug::NoLocking": "true",
        }
        self.options = ["-qq", *(f"-o{name}={value}" for name, value in own.items())]
        run("apt-get", *self.options, "update")

    def needs(self, packages, pattern):
        """The names that match, among all that these packages depend on."""
        command = ["apt-cache", *self.options, "depends", "--recurse", "--important", *packages]
        names = run(*command, stdout=subprocess.PIPE).split()
        return sorted({name for name in names if re.fullmatch(pattern, name)})

    def unpack(self, folder, packages, with_needs=False):
        """Unpacks packages into a folder."""
        get = ["apt-get", *self.options, "-y", "--no-install-recommends"]
        if with_needs:
            run(*get, "--download-only", "install", *packages)
        else:
            run(*get, "download", *packages, cwd=self.archives)
        for archive in sorted(self.archives.glob("*.deb")):
            run("dpkg-deb", "-x", archive, folder)
            archive.unlink()


def program(path, text):
    """Writes a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
