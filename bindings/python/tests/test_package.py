"""The installed package: light, typed, and documented as its stubs are."""

import ast
import importlib.metadata
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import workglow_limit
from conftest import HERE, run
from workglow_limit import _native


def test_the_import_is_light():
    heavy = {"asyncio", "sqlite3", "typing", "datetime", "inspect", "threading"}
    program = """
import sys
before = set(sys.modules)
import workglow_limit
print(*sorted(set(sys.modules) - before))
"""
    imported = set(run(program).split())
    assert "workglow_limit._native" in imported
    assert imported & heavy == set()


@pytest.mark.parametrize("first", ["", "import workglow_limit"])
def test_a_subinterpreter_is_refused(first):
    said = run("""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
exec(sys.argv[1])
# Python itself refuses a subinterpreter with its own GIL, where it supports them.
new = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create()
interpreters.run_string(new, '''
try:
    import workglow_limit
except ImportError as error:
    print(error, flush=True)
''')
import workglow_limit
with workglow_limit.ConcurrencyLimiter(1).acquire():
    pass
# The other one ends with the process.
""", first)  # fmt: skip
    assert "subinterpreter" in said


def test_the_metadata():
    about = importlib.metadata.metadata("workglow-limit")
    assert about["Version"] == workglow_limit.__version__
    assert about["License-Expression"] == "MIT OR Apache-2.0"
    extras = {
        "aiohttp>=3.12": "aiohttp",
        "arq>=0.28": "arq",
        "celery>=5.4": "celery",
        "django>=5.0": "django",
        "djangorestframework>=3.15": "djangorestframework",
        "dramatiq>=2.2": "dramatiq",
        "flask>=2.3": "flask",
        "httpx2>=2.12": "httpx2",
        "httpx>=0.26": "httpx",
        "limits>=5.0": "limits",
        "opentelemetry-api>=1.20": "opentelemetry",
        "requests>=2.31": "requests",
        "rq>=3": "rq",
        "starlette>=0.40": "fastapi",
        "taskiq-redis>=1.2.4": "taskiq",
        "taskiq>=0.13": "taskiq",
        "urllib3>=2.0.7": "urllib3",
    }
    assert sorted(about.get_all("Requires-Dist")) == sorted(
        f"{needs} ; extra == '{extra}'" for needs, extra in extras.items()
    )


def test_the_metadata_names_no_address():
    about = importlib.metadata.metadata("workglow-limit")
    assert not {"Home-page", "Download-URL", "Project-URL"} & set(about.keys())


def test_all_public_names_are_listed():
    # Submodules are attributes once they are imported.
    here = {name for name, value in vars(workglow_limit).items() if not isinstance(value, ModuleType)}
    public = {name for name in here if not name.startswith("_")} - {"TYPE_CHECKING"}
    lazy = {"CustomLimiter", "JobLimiter"}
    assert public | {"__version__"} | lazy == set(workglow_limit.__all__)
    for name in lazy:
        assert getattr(workglow_limit, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'workglow_limit' has no attribute 'Nothing'"):
        workglow_limit.Nothing


def test_all_public_names_are_typed():
    public = [getattr(workglow_limit, name) for name in workglow_limit.__all__]
    members = {name for one in public if isinstance(one, type) for name in vars(one) if not name.startswith("_")}
    used = set(re.findall(r"\w+", (HERE / "typed.py").read_text()))
    assert (members | set(workglow_limit.__all__)) - used == set()


def test_the_package_has_its_types():
    """`make types` checks that they are right."""
    folder = Path(workglow_limit.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_native.pyi").exists()


def documented(body, owner):
    """Yields the names in a stub, and their doc strings in the stub and in the module, without line breaks."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("__"):
            continue
        is_overload = any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
        if is_overload and not ast.get_docstring(node):
            continue  # The first overload has the doc string.
        value = inspect.getattr_static(owner, node.name)
        value = value.__func__ if isinstance(value, classmethod) else value
        yield node.name, *(" ".join((text or "").split()) for text in (ast.get_docstring(node), value.__doc__))
        if isinstance(node, ast.ClassDef):
            yield from documented(node.body, value)


def test_the_stubs_have_the_doc_strings_of_the_module():
    stub = ast.parse((Path(workglow_limit.__file__).parent / "_native.pyi").read_text())
    found = list(documented(stub.body, _native))
    assert len(found) > 150
    assert [(name, here, there) for name, here, there in found if here != there] == []
