"""Compilers for other platforms. rustup's has a standard library for this machine alone, and its servers may be out of reach. Debian's
comes with the source of that library, and with the compiled one for arm64; that for musl is compiled here once. zig compiles C and links.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cache import CACHE, Debian, once, program, run

HERE = "x86_64-unknown-linux-gnu"
# Standard libraries that Debian has compiled.
READY = [HERE, "aarch64-unknown-linux-gnu"]
STD = "std,panic_abort,panic_unwind,proc_macro,test"
RUST = ["rustc-web", "rust-web-src", "libstd-rust-web-dev"]
# For files of arm64: the C library is put together with these.
TOOLS = "binutils-aarch64-linux-gnu"


def fetch(folder):
    debian = Debian()
    behind = debian.needs(RUST, r"libstd-rust-web-[\d.]+|libllvm\d+")
    debian.unpack(folder, [*RUST, *behind, TOOLS])
    Debian("arm64").unpack(folder, ["libstd-rust-web-dev"])
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    for path in sorted((folder / "usr/bin").iterdir()):
        program(folder / "bin" / path.name, f'LD_LIBRARY_PATH="{libraries}" exec "{path}" "$@"')
    # rustc strips build scripts with this one.
    program(folder / "usr/lib/rustlib" / HERE / "bin/rust-objcopy", 'exec objcopy "$@"')
    (source,) = (folder / "usr/src").glob("rustc-*")
    if source.name != f"rustc-{release(folder)}":
        sys.exit(f"Debian's rustc {release(folder)} and its standard library's {source.name} must be of one version")
    for path in source.iterdir():
        if path.name not in ("library", "Cargo.lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def release(rust):
    """The version of the compiler."""
    said = run(rust / "bin/rustc", "-vV", stdout=subprocess.PIPE)
    return re.search(r"^release: (.*)$", said, re.M)[1]


def environment(rust):
    """The environment in which cargo finds these compilers."""
    path = os.pathsep.join([str(rust / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    jobs = os.environ.get("CARGO_BUILD_JOBS") or str(os.cpu_count())
    tools = {"RUSTC": str(rust / "bin/rustc"), "RUSTDOC": str(rust / "bin/rustdoc")}
    return {**os.environ, **tools, "PATH": path, "CARGO_BUILD_JOBS": jobs}


def compile_std(folder, rust, target):
    """Compiles the standard library for a target. Only here the compiler is allowed what else only nightly ones are."""
    (folder / "src").mkdir()
    (folder / "src/lib.rs").touch()
    (folder / "Cargo.toml").write_text('[package]\nname = "empty"\nedition = "2024"\n')
    env = {**environment(rust), "RUSTC_BOOTSTRAP": "1", "CARGO_TARGET_DIR": str(folder / "target")}
    command = ["cargo-zigbuild", "zigbuild", "--quiet", "--release", "--target", target, f"-Zbuild-std={STD}"]
    run(*command, cwd=folder, env=env)
    (folder / "lib").mkdir()
    for library in (folder / "target" / target / "release/deps").glob("*.rlib"):
        if not library.name.startswith("libempty"):
            library.rename(folder / "lib" / library.name)
    shutil.rmtree(folder / "target")


def is_there(target):
    """Whether the cache has a compiler for it."""
    return any(CACHE.glob(f"std-*-{target}/.whole"))


def prepare(targets):
    """The environment of compilers for these targets."""
    rust = once("toolchain", fetch)
    env = environment(rust)
    for target in targets:
        if target not in READY:
            std = once(f"std-{release(rust)}-{target}", compile_std, rust, target)
            library = rust / "usr/lib/rustlib" / target / "lib"
            library.parent.mkdir(exist_ok=True)
            if not library.is_symlink():
                library.symlink_to(std / "lib")
    return env
