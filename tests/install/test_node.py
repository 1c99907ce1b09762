"""The npm package in empty folders: as `make dist` makes it, with its native code, and as it will be published, in two parts."""

import json
import platform
import re
import shutil

import pytest
from conftest import DIST, PAGES, ROOT, STORE, VERSION, only, quick_start, run

NODE = ROOT / "bindings/node"
CPU = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
NAME = f"linux-{CPU}-{'gnu' if platform.libc_ver()[0] == 'glibc' else 'musl'}"
IMPORT = 'import { Store } from "workglow-limit"; console.log(new Store("memory:").url)'


def install(folder, *packages):
    """Installs packages without a registry: only given packages exist, and optional ones are left out."""
    (folder / "package.json").write_text("{}")
    return run("npm", "install", "--offline", "--no-audit", "--no-fund", *packages, cwd=folder)


@pytest.fixture(scope="module")
def package(published):
    """Returns the files to install: the one of `make dist`, or the two to publish."""
    return published.values() if (DIST / "npm").exists() else [only(DIST, "*.tgz")]


def in_copies(installed):
    """Returns a function that copies the installed packages into a folder. Another install would give the same files."""
    return lambda folder: shutil.copytree(installed, folder, symlinks=True, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def install_package(tmp_path_factory, package):
    """Returns a function that puts the package into an empty folder."""
    folder = tmp_path_factory.mktemp("package")
    install(folder, *package)
    return in_copies(folder)


@pytest.fixture(scope="module")
def install_published(tmp_path_factory, published):
    """Does the same with the two packages to publish."""
    folder = tmp_path_factory.mktemp("both")
    install(folder, published["main"], published[NAME])
    return in_copies(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Returns the main package and this platform's: from `make dist-all`, or packed from the output of `make dist`."""
    if (DIST / "npm").exists():
        return {"main": only(DIST / "npm", "workglow-limit-[0-9]*.tgz"), NAME: only(DIST / "npm", f"*-{NAME}-*.tgz")}
    out = tmp_path_factory.mktemp("published")
    (addon,) = (NODE / "dist").glob("*.node")
    # (Not every compiler can build the entry for browsers.)
    without = [] if (NODE / "dist/web/module.wasm").exists() else ["without-web"]
    return {"main": pack(out, "main", *without), NAME: pack(out, NAME, addon)}


def pack(out, *what):
    return out / run("node", NODE / "scripts/pack.mjs", out, *what).split()[-1]


def test_the_quick_start_runs_as_a_module(empty, install_package):
    install_package(empty)
    (empty / "quick.mjs").write_text(quick_start("js", STORE, *PAGES))
    run("node", "quick.mjs", cwd=empty)
    assert (empty / "limits.db").exists()


def test_the_quick_start_runs_in_common_js(empty, install_package):
    install_package(empty)
    program = re.sub(
        r"^import (\{.*?\}) from (.*);$", r"const \1 = require(\2);", quick_start("js", STORE, *PAGES), flags=re.M
    )
    (empty / "quick.cjs").write_text(f"(async () => {{\n{program}\n}})();\n")
    run("node", "quick.cjs", cwd=empty)
    assert (empty / "limits.db").exists()


@pytest.mark.parametrize("module", ["nodenext", "bundler"])
def test_the_quick_start_has_types(module, empty, install_package):
    install_package(empty)
    (empty / "quick.mts").write_text(quick_start("js", STORE, *PAGES))
    types = ["--typeRoots", NODE / "node_modules/@types", "--types", "node"]
    resolution = ["--module", module] if module == "nodenext" else ["--module", "esnext", "--moduleResolution", module]
    strict = [
        "--strict",
        "--exactOptionalPropertyTypes",
        "--noUncheckedIndexedAccess",
        "--noEmit",
        "--target",
        "es2022",
    ]
    tsc = NODE / "node_modules/typescript/bin/tsc"
    (empty / "wrong.mts").write_text(IMPORT.replace('"memory:"', "5"))
    output = run("node", tsc, *strict, *resolution, *types, "quick.mts", "wrong.mts", cwd=empty, check=False)
    # Nothing is wrong with the first.
    assert re.findall(r"^(.*)\(.*error (\w+)|error", output, re.M) == [("wrong.mts", "TS2345")], output


def test_nothing_but_the_package_is_installed(empty, install_package):
    install_package(empty)
    installed = {path.name for path in (empty / "node_modules").iterdir() if not path.name.startswith(".")}
    assert installed <= {"workglow-limit", "@workglow-limit"}
    manifest = json.loads((empty / "node_modules/workglow-limit/package.json").read_text())
    assert "dependencies" not in manifest and "install" not in manifest.get("scripts", {})


def test_the_published_packages_work_together(empty, install_published):
    install_published(empty)
    folder = empty / "node_modules/workglow-limit"
    assert list(folder.rglob("*.node")) == []
    assert json.loads((folder / "package.json").read_text())["optionalDependencies"].keys() >= {
        f"@workglow-limit/{NAME}"
    }
    (empty / "quick.mjs").write_text(quick_start("js", STORE, *PAGES))
    run("node", "quick.mjs", cwd=empty)
    assert (empty / "limits.db").exists()


def error(folder):
    return run("node", "-e", "try { require('workglow-limit') } catch (e) { console.log(e.message) }", cwd=folder)


def test_a_missing_platform_package_names_the_remedy(empty, published):
    install(empty, published["main"])
    output = error(empty)
    assert f"its optional dependency @workglow-limit/{NAME} is not installed" in output
    assert "--omit=optional" in output
    assert f"npm install @workglow-limit/{NAME}@{VERSION}" in output
    # And that remedy works.
    install(empty, published["main"], published[NAME])
    assert run("node", "--input-type=module", "-e", IMPORT, cwd=empty) == "memory:\n"


def test_a_package_of_another_version_is_not_used(empty, install_published):
    install_published(empty)
    manifest = empty / f"node_modules/@workglow-limit/{NAME}/package.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": "0.0.1"}))
    assert f"@workglow-limit/{NAME} (it has version 0.0.1, and workglow-limit {VERSION})" in error(empty)


def test_native_code_that_does_not_load_states_the_reason(empty, install_published):
    install_published(empty)
    (empty / f"node_modules/@workglow-limit/{NAME}/workglow-limit.node").write_bytes(b"not a library")
    assert re.search(rf"Tried: @workglow-limit/{NAME} \(.*(short|invalid|not).*\)", error(empty))


def test_npm_refuses_another_platform_s_package(empty):
    (empty / "package.json").write_text("{}")
    other = "linux-arm64-gnu" if platform.machine() == "x86_64" else "linux-x64-gnu"
    output = run("npm", "install", "--offline", pack(empty, other, __file__), cwd=empty, check=False)
    assert "EBADPLATFORM" in output


def test_a_platform_without_a_package_gets_the_list(empty, install_published):
    install_published(empty)
    elsewhere = "Object.defineProperty(process, 'arch', { value: 'sparc' });"
    output = run(
        "node",
        "-e",
        f"{elsewhere} try {{ require('workglow-limit') }} catch (e) {{ console.log(e.message) }}",
        cwd=empty,
    )
    assert "no native code for linux-sparc that loads: there are packages for linux-x64-gnu" in output
