"""The checks of a release find the faults that they are for."""

import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest
from conftest import DIST, ROOT

FILES = [
    "Cargo.toml", "Cargo.lock", "CHANGELOG.md", "README.md", "Makefile", "ffi/build.rs", "include/workglow_limit.h", "tests/c/abi", "tests/c/abi.txt",
    "bindings/node/package.json", "bindings/node/package-lock.json", "bindings/node/lib/index.ts",
    "bindings/python/python/workglow_limit/_native.pyi", "bindings/python/python/workglow_limit/__init__.py",
    "scripts/versions", "scripts/compatible",
]  # fmt: skip


@pytest.fixture
def copy(empty):
    """Returns a repository with one release, v0.1.0, and a commit after it."""
    for file in FILES:
        (empty / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, empty / file)
    cargo = (empty / "Cargo.toml").read_text()
    (empty / "Cargo.toml").write_text(re.sub(r'^version = ".*"', 'version = "0.1.0"', cargo, count=1, flags=re.M))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "a"],
        ["tag", "v0.1.0"],
        ["commit", "-qm", "b", "--allow-empty"],
    ):
        subprocess.run([*git, *command], cwd=empty, check=True)
    return empty


def output_of(folder, *command):
    done = subprocess.run([folder / command[0], *command[1:]], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def replace(file, pattern, new):
    text, count = re.subn(pattern, new, file.read_text(), count=1, flags=re.M)
    assert count == 1
    file.write_text(text)


@pytest.mark.parametrize(
    "file, pattern, new",
    [
        ("bindings/node/package.json", r'^  "version": ".*"', '  "version": "9.9.9"'),
        ("Cargo.lock", r'(name = "workglow-limit-ffi"\nversion = )".*"', r'\1"9.9.9"'),
        ("CHANGELOG.md", r"^## \S+", "## 9.9.9"),
        ("ffi/build.rs", r"limit\.so\.\d+", "limit.so.99"),
    ],
)
def test_a_version_that_differs_is_named_with_its_file(copy, file, pattern, new):
    assert output_of(ROOT, "scripts/versions")[0] == 0
    replace(copy / file, pattern, new)
    code, message = output_of(copy, "scripts/versions")
    assert code == 1 and f"{file} has 9" in message


@pytest.mark.parametrize(
    "file, pattern, new, name",
    [
        ("include/workglow_limit.h", r"^int wgl_cancel\(", "int wgl_cancelled(", "C header: function wgl_cancel\n"),
        (
            "bindings/python/python/workglow_limit/_native.pyi",
            r"^    def settle\(",
            "    def settled(",
            "Permit.settle: was",
        ),
        ("bindings/python/python/workglow_limit/__init__.py", r'^    "Permit",\n', "", "Permit: was"),
        ("bindings/node/lib/index.ts", r"^export \{ Permit \}.*\n", "", "Permit: was"),
    ],
)
def test_a_removed_name_needs_a_new_version(copy, file, pattern, new, name):
    assert output_of(copy, "scripts/compatible") == (0, "0 differences from v0.1.0 (0.1.0)\n")
    replace(copy / file, pattern, new)
    code, message = output_of(copy, "scripts/compatible")
    assert code == 1 and name in message
    replace(copy / "Cargo.toml", r'^version = "0.1.0"', 'version = "0.2.0"')
    assert output_of(copy, "scripts/compatible")[0] == 0


def test_a_new_name_needs_no_new_version(copy):
    replace(copy / "include/workglow_limit.h", r"^int wgl_cancel\(", "int wgl_new(void);\nint wgl_cancel(")
    replace(
        copy / "bindings/python/python/workglow_limit/_native.pyi",
        r"^class Permit",
        "def new() -> None: ...\n\nclass Permit",
    )
    assert output_of(copy, "scripts/compatible")[0] == 0


def licences():
    """Yields the third-party licences of each package that was built, with the package's name."""
    for wheel in [*DIST.glob("*.whl"), *DIST.glob("python/*.whl")]:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/LICENSE-THIRD-PARTY"))
            yield wheel.name, archive.read(name).decode()
    for package in [*DIST.glob("*.tgz"), *DIST.glob("npm/workglow-limit-[a-z]*.tgz")]:
        with tarfile.open(package) as archive:
            yield package.name, archive.extractfile("package/LICENSE-THIRD-PARTY").read().decode()
    for prefix in DIST.glob("c/share/doc/workglow_limit"):
        yield "c", (prefix / "LICENSE-THIRD-PARTY").read_text()


def test_packages_have_the_licences_of_what_they_contain():
    found = dict(licences())
    assert len(found) >= 3, found.keys()
    for name, text in found.items():
        for crate in ("subtle", "rustls-webpki", "icu_properties", "libsqlite3-sys"):
            assert re.search(rf"^{crate} \d", text, re.M), f"{name} names no {crate}"
        for words in ("Redistribution and use in source and binary", "UNICODE LICENSE", "AND THE AUTHOR DISCLAIMS ALL"):
            assert words in text, f"{name}: {words}"


def test_a_crate_has_what_it_needs_and_no_tests():
    for package in ("workglow-limit", "workglow-limit-cli"):
        command = ["cargo", "package", "--list", "--allow-dirty", "--locked", "--package", package]
        files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert {"README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"} <= set(files)
        assert not [file for file in files if file.startswith("tests/")]
