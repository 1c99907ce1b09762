"""Writes the reference of the Python package as data: docs/api/python.py FILE.

Names and docstrings come from the package, types from the stubs of its native half.
"""

import ast
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path

import django.conf
import pdoc.doc
import workglow_limit
from workglow_limit import _derived, _errors, _queueing

SOURCES = Path(workglow_limit.__file__).parent
# Names that are resolved at their first use become names of the module here: pdoc looks no further.
vars(workglow_limit).update({name: getattr(workglow_limit, name) for name in workglow_limit.__all__})
# Django's REST framework reads its settings when it is imported.
django.conf.settings.configure()
# pdoc reads a class in the file that its module names; errors name the module that programs import.
for _name, _error in inspect.getmembers(_errors, inspect.isclass):
    _error.__module__ = _errors.__name__
# The fields of a named tuple have their types as texts, which pdoc looks up where they are not.
_queueing.Limited.__new__.__annotations__["key"] = _derived.Key


class Stubs:
    """The signatures of `_native.pyi`, by name: `Store.limiter` has two."""

    def __init__(self, path):
        self.signatures = {}
        self.source = path.read_text()
        tree = ast.parse(self.source)
        self.aliases = {
            node.target.id: ast.unparse(node.value)
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and node.target.id[0] == "_" and node.value
        }
        self._read(tree.body, "")

    def _read(self, body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._read(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.signatures.setdefault(prefix + node.name, []).append(node)

    def text(self, node):
        """Returns an expression with the private aliases of the stubs expanded."""
        text = " ".join(ast.get_source_segment(self.source, node).split())
        for name, value in self.aliases.items():
            text = re.sub(rf"\b{name}\b", value, text)
        return text

    def parameters(self, node):
        arguments = node.args
        positional = arguments.posonlyargs + arguments.args
        defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
        texts = []

        def add(argument, default, star=""):
            if argument.arg in ("self", "cls") and not texts:
                return
            annotation = f": {self.text(argument.annotation)}" if argument.annotation else ""
            equals = " = " if annotation else "="
            texts.append(f"{star}{argument.arg}{annotation}" + (f"{equals}{self.text(default)}" if default else ""))

        for i, (argument, default) in enumerate(zip(positional, defaults)):
            add(argument, default)
            if texts and i + 1 == len(arguments.posonlyargs):
                texts.append("/")
        if arguments.vararg:
            add(arguments.vararg, None, "*")
        elif arguments.kwonlyargs:
            texts.append("*")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            add(argument, default)
        if arguments.kwarg:
            add(arguments.kwarg, None, "**")
        return texts


STUBS = Stubs(SOURCES / "_native.pyi")


def call(start, parameters, end):
    """Returns a call on one line, or with a line for each parameter if it is long."""
    line = f"{start}({', '.join(parameters)}){end}"
    if len(line) <= 96 or not parameters:
        return line
    return f"{start}(\n    " + ",\n    ".join(parameters) + f",\n){end}"


def returns(annotation):
    return f" -> {annotation}" if annotation else ""


def of_function(name, function, known):
    """Returns the signatures of a function, from the stubs or from the code."""
    stubs = STUBS.signatures.get(known, [])
    keyword = "async def" if function is not None and function.funcdef.startswith("async") else "def"
    lines = []
    for node in stubs:
        keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else keyword
        decorators = [ast.unparse(one) for one in node.decorator_list]
        before = "".join(f"@{one}\n" for one in decorators if one in ("classmethod", "staticmethod"))
        lines.append(
            before
            + call(f"{keyword} {name}", STUBS.parameters(node), returns(node.returns and STUBS.text(node.returns)))
        )
    if lines:
        return "\n".join(lines)
    signature = function.signature
    parameters = [str(one) for one in signature.parameters.values() if one.name not in ("self", "cls")]
    kinds = [one.kind for one in signature.parameters.values() if one.name not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    annotation = signature.return_annotation
    end = "" if annotation is signature.empty else returns(inspect.formatannotation(annotation))
    return call(f"{keyword} {name}", parameters, end)


def text(docstring):
    return inspect.cleandoc(docstring or "")


def short(signature):
    """Returns a signature without the modules of well-known names."""
    signature = re.sub(
        r"\b(?:workglow_limit(?:\.\w+)*\.|builtins\.|collections\.abc\.|typing(?:_extensions)?\.)(?=\w)|~(?=[A-Z])",
        "",
        signature,
    )
    return re.sub(r"^class (\w+)\((?:\*args, \*\*kwargs)?\)$", r"class \1", signature.replace("(_cls, ", "("))


def member(of, class_name):
    known = f"{class_name}.{of.name}"
    if isinstance(of, pdoc.doc.Function):
        return {
            "name": of.name,
            "kind": "method",
            "signature": of_function(of.name, of, known),
            "doc": text(of.docstring),
        }
    node = STUBS.signatures.get(known, [None])[0]
    annotation = STUBS.text(node.returns) if node is not None and node.returns else of.annotation_str.removeprefix(": ")
    signature = of.name + (f": {annotation}" if annotation else "")
    return {"name": of.name, "kind": "property", "signature": signature, "doc": text(of.docstring)}


def is_public(of):
    return of.name[0] != "_" or (
        of.name in ("__call__", "__enter__", "__aenter__", "__len__", "__iter__") and bool(of.docstring)
    )


def item(of):
    if isinstance(of, pdoc.doc.Function):
        return {
            "name": of.name,
            "kind": "function",
            "signature": of_function(of.name, of, of.name),
            "doc": text(of.docstring),
        }
    if not isinstance(of, pdoc.doc.Class):
        annotation = of.annotation_str
        value = of.default_value_str
        return {
            "name": of.name,
            "kind": "variable",
            "signature": f"{of.name}{annotation}" + (f" = {value}" if value and len(value) < 200 else ""),
            "doc": text(of.docstring),
        }
    bases = [name for _, _, name in of.bases if name not in ("object",)]
    own = {one.name for one in of.own_members}
    constructor = STUBS.signatures.get(f"{of.name}.__new__")
    if constructor:
        signature = "\n".join(call(f"class {of.name}", STUBS.parameters(node), "") for node in constructor)
    elif "__init__" in own:
        signature = (
            of_function(of.name, of.members["__init__"], "").replace("def ", "class ", 1).removesuffix(" -> None")
        )
    else:
        signature = f"class {of.name}" + (f"({', '.join(bases)})" if bases else "")
    hidden = {"__init__", "__new__"}
    # In the order of the stubs, because native members have no order.
    order = [name for name in STUBS.signatures if name.startswith(f"{of.name}.")]
    place = {name.rpartition(".")[2]: i for i, name in enumerate(order)}
    listed = sorted(of.own_members, key=lambda one: place.get(one.name, len(order)))
    members = [member(one, of.name) for one in listed if one.name not in hidden and is_public(one)]
    inherited = [
        one.name
        for (module, _), those in of.inherited_members.items()
        if module.startswith("workglow_limit")
        for one in those
        if is_public(one) and one.name not in hidden
    ]
    return {
        "name": of.name,
        "kind": "class",
        "signature": signature,
        "doc": text(of.docstring),
        "bases": bases,
        "members": members,
        "inherited": sorted(set(inherited) - {one["name"] for one in members}),
    }


def module(name):
    of = pdoc.doc.Module.from_name(name)
    listed = getattr(of.obj, "__all__", None)
    items = [
        item(one)
        for one in of.members.values()
        if not isinstance(one, pdoc.doc.Module)
        and (one.name in listed if listed is not None else is_public(one) and one in of.own_members)
        and one.name[0] != "_"
    ]
    return {"name": name, "doc": text(of.docstring), "items": items}


parts = sorted(part.name for part in pkgutil.iter_modules(workglow_limit.__path__) if part.name[0] != "_")
modules = [module("workglow_limit"), *(module(f"workglow_limit.{name}") for name in parts)]
for one in [one for of in modules for item in of["items"] for one in (item, *item.get("members", []))]:
    one["signature"] = short(one["signature"])
Path(sys.argv[1]).write_text(
    json.dumps({"title": "Python", "fence": "python", "modules": modules}, indent=1, ensure_ascii=False)
)
