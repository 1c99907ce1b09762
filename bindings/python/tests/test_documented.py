"""Every public name of the package has a doc string: `make docs` builds the reference from them."""

import importlib
import inspect
import pkgutil

import pytest
import workglow_limit
from django.conf import settings


def public(module):
    """Yields the public names of a module and the public members of its classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or callable(value):
            yield f"{module.__name__}.{name}", value
        for member, inner in vars(value).items() if inspect.isclass(value) else ():
            if member[0] != "_" and not isinstance(inner, (int, str)):
                yield f"{module.__name__}.{name}.{member}", inner


MODULES = ["workglow_limit"] + [
    f"workglow_limit.{found.name}" for found in pkgutil.iter_modules(workglow_limit.__path__) if found.name[0] != "_"
]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    if not settings.configured:
        settings.configure()  # Django's REST framework reads them when it is imported.
    module = importlib.import_module(name)
    names = dict(public(module))
    assert names and (module.__doc__ or "").strip()
    assert [name for name, value in names.items() if not (getattr(value, "__doc__", None) or "").strip()] == []
