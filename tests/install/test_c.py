"""The C library, moved to another folder: the C and C++ quick starts, with pkg-config and with CMake."""

import shutil
import tarfile

import pytest
from conftest import DIST, PAGES, ROOT, STORE, only, quick_start, run

SOURCES = {"c": "C", "cpp": "CXX"}


@pytest.fixture
def prefix(empty):
    """Returns the prefix of `make dist`, or the archive of `make dist-all`, in an empty folder."""
    if (DIST / "c").is_dir() and not list((DIST / "c").glob("*.tar.gz")):
        return shutil.copytree(DIST / "c", empty / "prefix", symlinks=True)
    with tarfile.open(only(DIST / "c", "*-gnu.tar.gz")) as archive:
        archive.extractall(empty, filter="data")
    return next(empty.glob("workglow-limit-c-*"))


def program(language):
    """Returns the quick start of the documentation, or of the examples."""
    try:
        return quick_start(language, STORE, *PAGES)
    except pytest.fail.Exception:
        return (ROOT / f"examples/{language}/quickstart.{language}").read_text()


@pytest.mark.parametrize("language", SOURCES)
def test_with_pkg_config(language, empty, prefix):
    (empty / f"app.{language}").write_text(program(language))
    there = {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "workglow_limit", cwd=empty, **there).split()
    compiler = ["cc", "-std=c11"] if language == "c" else ["c++", "-std=c++17"]
    run(*compiler, f"app.{language}", "-o", "app", *flags, f"-Wl,-rpath,{prefix}/lib", cwd=empty)
    run(empty / "app", cwd=empty)
    assert (empty / "limits.db").exists()
    assert str(prefix) in run("ldd", empty / "app")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize("target", ["workglow_limit", "static"])
@pytest.mark.parametrize("language", SOURCES)
def test_with_cmake(language, target, empty, prefix):
    (empty / f"app.{language}").write_text(program(language))
    (empty / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.16)
project(app LANGUAGES {SOURCES[language]})
find_package(workglow_limit REQUIRED)
add_executable(app app.{language})
target_link_libraries(app PRIVATE workglow_limit::{target})
""")
    run("cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=empty)
    run("cmake", "--build", "build", cwd=empty)
    run(empty / "build/app", cwd=empty)
    assert (empty / "limits.db").exists()
    assert (str(prefix) in run("ldd", empty / "build/app")) == (target != "static")
