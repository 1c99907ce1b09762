"""Writes the reference of the Python package: docs/api/python.py DIRECTORY."""

import pkgutil
import sys
from pathlib import Path

import pdoc
import workglow_limit

# Names that are resolved at their first use are names of the module from here on: pdoc looks no further.
vars(workglow_limit).update({name: getattr(workglow_limit, name) for name in workglow_limit.__all__})
parts = [part.name for part in pkgutil.iter_modules(workglow_limit.__path__) if part.name[0] != "_"]

pdoc.render.configure(docformat="markdown", show_source=False)
pdoc.pdoc("workglow_limit", *(f"workglow_limit.{name}" for name in parts), output_directory=Path(sys.argv[1]))
