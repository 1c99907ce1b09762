"""The tables of docs/constructors.md list exactly the options that the constructors of each language take.

Nothing is built: Python's stubs, Node's TypeScript, the C and C++ headers and the Rust sources are read as text.
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("WGL_SOURCES", Path(__file__).resolve().parents[2]))
PAGE = Path(__file__).resolve().parents[2] / "docs/constructors.md"
LANGUAGES = ["Python", "Node", "C", "C++", "Rust"]
COMMON = "Common parameters"
# The sections of the page, by the names that their constructors have in C, C++ and Rust if those differ.
SECTIONS = {
    "Store": ("store", "StoreOptions", "StoreOptions"),
    "RateLimiter": ("rate_limiter",),
    "ConcurrencyLimiter": ("concurrency_limiter",),
    "DelayLimiter": ("delay_limiter",),
    "EvenlySpacedRateLimiter": ("evenly_spaced_rate_limiter",),
    "TokenBucketLimiter": ("token_bucket_limiter",),
    "LeakyBucketLimiter": ("leaky_bucket_limiter",),
    "FixedWindowLimiter": ("fixed_window_limiter",),
    "SlidingWindowCounterLimiter": ("sliding_window_counter_limiter",),
    "FlowControl": ("flow_control_limiter", "FlowControlLimiter", "flow_control"),
}


# The page.


def tables(text):
    """Returns the options of each section: a list of rows, each a dict from the column's title to its cell."""
    found = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        for table in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
            head, _, *rows = [re.split(r"\s*\|\s*", line.strip().strip("|").strip()) for line in table.splitlines()]
            if head[0] == "option":
                assert all(len(row) == len(head) for row in rows), f"{title}: a row has too few or too many cells"
                found[title] = [dict(zip(head, row)) for row in rows]
    return found


def names(rows, language):
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row[language])}


# The sources. Each function returns the options of a constructor: names, with the default where the language has one.

REQUIRED = object()


@functools.cache
def python_options(root, section):
    stubs = ast.parse((root / "bindings/python/python/workglow_limit/_native.pyi").read_text())
    (cls,) = [node for node in stubs.body if isinstance(node, ast.ClassDef) and node.name == section]
    found = {}
    for made in (
        node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name in ("__new__", "__init__")
    ):
        plain = made.args.posonlyargs + made.args.args
        defaults = [None] * (len(plain) - len(made.args.defaults)) + made.args.defaults
        for argument, default in [*zip(plain[1:], defaults[1:]), *zip(made.args.kwonlyargs, made.args.kw_defaults)]:
            value = REQUIRED if default is None else ast.literal_eval(default)
            # An overload requires what another one forbids: such an option has no default.
            found[argument.arg] = value if found.get(argument.arg, value) == value else REQUIRED
    return found


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def in_brackets(text, at):
    """Returns what is inside the bracket that opens at or after `at`."""
    start = at = re.compile(r"[({<\[]").search(text, at).start()
    depth = 0
    while True:
        if text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
            if depth == 0:
                return text[start + 1 : at]
        at += 1


def parts(text):
    """Splits a list at its outermost commas."""
    found, depth, last = [], 0, ""
    for character in text.replace("=>", "").replace("->", ""):
        depth += (character in "({[<") - (character in ")}]>")
        if character == "," and depth == 0:
            found.append(last.strip())
            last = ""
        else:
            last += character
    return [part for part in [*found, last.strip()] if part]


@functools.cache
def sources(root, *patterns):
    files = sorted(path for pattern in patterns for path in root.glob(pattern) if not path.name.endswith("_tests.rs"))
    return without_comments("\n".join(path.read_text() for path in files))


def node_options(root, section):
    text = sources(root, "bindings/node/lib/*.ts")

    def fields(name):
        """The fields of an interface or of a type of objects, including inherited ones."""
        head = re.search(rf"export (?:interface {name}\b([^{{]*)|type {name} =)", text)
        if not head:
            return set()
        end = text.index(";\n", text.rindex("}", 0, text.index(";\n\n", head.end()))) if head[1] is None else None
        body = text[head.end() : end] if head[1] is None else in_brackets(text, head.end() - 1)
        found = set(re.findall(r"^\s*(?:\| \(\w+ & \{)?\s*(\w+)\??:", body, re.MULTILINE))
        inherited = re.findall(r"[A-Z]\w+", head[1] if head[1] is not None else re.sub(r"\{[^}]*\}", "", body))
        return found.union(*map(fields, inherited))

    body = text[re.search(rf"export class {section}\b", text).end() :]
    made = re.search(r"^  constructor", body, re.MULTILINE)
    found = set()
    for parameter in parts(in_brackets(body, made.end())):
        name, kind = re.match(r"(\w+)\??(?::\s*(\w+))?", parameter).groups()
        found |= fields(kind) if kind and fields(kind) else {name}
    return found


def c_options(root, section):
    text = without_comments((root / "include/workglow_limit.h").read_text())
    kind = SECTIONS[section][0]
    found = set()
    for name in (f"wgl_{kind}_new", f"wgl_{kind}_shared", f"wgl_{kind}_open"):
        for function in re.finditer(rf"^int {name}\b", text, re.MULTILINE):
            found |= {re.search(r"(\w+)$", part)[1] for part in parts(in_brackets(text, function.end()))}
    (struct,) = re.findall(rf"typedef struct(?: \w+)? \{{([^}}]*)\}} wgl_{kind}_options;", text)
    # Left out: the options themselves, the result, and fields of the binary interface.
    found = found - {"options", "limiter"} if kind != "store" else found - {"options", "store"}
    return found | set(re.findall(r"(\w+);", struct)) - {"struct_size", "reserved"}


def cpp_fields(text, name):
    struct = re.search(rf"^struct {name}\b", text, re.MULTILINE)
    return re.findall(r"(\w+)(?: = [^;]*)?;", in_brackets(text, struct.end())) if struct else []


def cpp_options(root, section):
    text = without_comments((root / "include/workglow_limit.hpp").read_text())
    name = (SECTIONS[section] * 2)[1] if len(SECTIONS[section]) > 1 else section
    if name == "StoreOptions":
        return {"url", *cpp_fields(text, name)}
    body = in_brackets(text, re.search(rf"^class {name}\b", text, re.MULTILINE).end())
    found = set()
    for made in re.finditer(rf"^    (?:explicit )?{name}\(", body.split("private:")[0], re.MULTILINE):
        for parameter in parts(in_brackets(body, made.end() - 1)):
            kind, option = re.match(r"(.*?)\s*&?(\w+)(?: = .*)?$", parameter, re.DOTALL).groups()
            inner = cpp_fields(text, re.sub(r"const |\s|&", "", kind))
            found |= {f"{option}.{field}" for field in inner} or {option}
    return found


def rust_options(root, section):
    text = sources(root, "core/src/**/*.rs")
    name = SECTIONS[section][-1] if len(SECTIONS[section]) > 1 else section
    if name == "StoreOptions":
        struct = in_brackets(text, re.search(rf"pub struct {name}\b", text).end())
        return {"url", *re.findall(r"pub (\w+):", struct)}

    def arguments(function):
        listed = [
            re.match(r"(\w+):\s*(.*)", part, re.DOTALL) for part in parts(in_brackets(function.string, function.end()))
        ]
        return {argument[1]: argument[2] for argument in listed if argument}

    if name == "flow_control":
        return set(arguments(re.search(r"pub fn flow_control\b", text)))
    found = set()
    for block in re.finditer(rf"^impl {name} ", text, re.MULTILINE):
        body = in_brackets(text, block.end())
        for function in re.finditer(r"^    pub fn (?:new|with_\w+|shared)\b", body, re.MULTILINE):
            for option, kind in arguments(function).items():
                made = re.search(rf"^impl {kind} \{{\s*(?:#\[\w+\]\s*)?pub fn new\b", text, re.MULTILINE)
                found |= {f"{option}.{inner}" for inner in arguments(made)} if made else {option}
    return found


OPTIONS = {"Python": python_options, "Node": node_options, "C": c_options, "C++": cpp_options, "Rust": rust_options}


@functools.cache
def options(root, section, language):
    return frozenset(OPTIONS[language](root, section))


# The comparison.


def differences(text, root, language):
    """Returns what the page and the sources disagree about in one language."""
    found, wrong = tables(text), []
    if missing := {*SECTIONS, COMMON} - found.keys():
        return [f"no table of options under {', '.join(sorted(missing))}"]
    common, used = names(found[COMMON], language), set()
    for section in SECTIONS:
        listed, taken = names(found[section], language), options(root, section, language)
        used |= taken & common
        wrong += [f"{section}: {name} is missing" for name in sorted(taken - listed - common)]
        wrong += [f"{section}: {name} is no option" for name in sorted(listed - taken)]
    return wrong + [f"{COMMON}: {name} is no option of any constructor" for name in sorted(common - used)]


SECONDS = {"ms": 0.001, "s": 1, "min": 60}


def default_of(cell):
    """Returns the default that a cell of the page states, as Python has it."""
    cell = re.sub(r";.*", "", cell).strip("` ")
    if cell.startswith("required"):
        return REQUIRED
    if time := re.fullmatch(r"(\d+) (ms|s|min)", cell):
        return int(time[1]) * SECONDS[time[2]]
    if re.fullmatch(r"0[0-7]+", cell):
        return int(cell, 8)
    try:
        return ast.literal_eval(cell.capitalize() if cell in ("true", "false") else cell)
    except (SyntaxError, ValueError):
        return None  # Words: the default is another option, or none.


def wrong_defaults(text, root):
    """Returns the options of Python whose default is not that of the page."""
    found = tables(text)
    rows = [(section, row) for section in SECTIONS for row in found[section]]
    wrong = []
    for section, row in rows:
        for name in names([row], "Python"):
            stated, taken = default_of(row["default"]), python_options(root, section).get(name, None)
            if stated is not taken and (stated is REQUIRED or taken is REQUIRED or stated != taken):
                wrong.append(
                    f"{section}: the default of {name} is {taken if taken is not REQUIRED else 'none: it is required'}"
                )
    return wrong


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_lists_every_option(language):
    assert differences(PAGE.read_text(), ROOT, language) == []


def test_the_page_states_the_defaults():
    assert wrong_defaults(PAGE.read_text(), ROOT) == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_option_is_found(language, section):
    page = PAGE.read_text()
    for name in names(tables(page)[section], language):
        # Under this heading the option has a name that no source has.
        heading, body = page.index(f"\n## {section}\n"), page.index("| option |", page.index(f"\n## {section}\n"))
        column = 5 + LANGUAGES.index(language)
        lines = page[body:].split("\n\n")[0].splitlines()
        row = next(line for line in lines if f"`{name}`" in line.split(" | ")[column])
        cells = row.split(" | ")
        cells[column] = cells[column].replace(f"`{name}`", "`stale`")
        wrong = differences(
            page.replace(page[heading:], page[heading:].replace(row, " | ".join(cells), 1)), ROOT, language
        )
        assert f"{section}: stale is no option" in wrong
        listed_twice = sum(f"`{name}`" in line.split(" | ")[column] for line in lines) > 1
        assert listed_twice or name in names(tables(page)[COMMON], language) or f"{section}: {name} is missing" in wrong


def test_a_new_option_is_found(tmp_path):
    stubs = tmp_path / "bindings/python/python/workglow_limit/_native.pyi"
    stubs.parent.mkdir(parents=True)
    text = (ROOT / stubs.relative_to(tmp_path)).read_text()
    assert "lease: _Duration | None = None," in text
    stubs.write_text(
        text.replace("lease: _Duration | None = None,", "lease: _Duration | None = None, strict: bool = False,")
    )
    assert differences(PAGE.read_text(), tmp_path, "Python") == ["ConcurrencyLimiter: strict is missing"]


def test_a_changed_default_is_found():
    page = PAGE.read_text()
    assert wrong_defaults(page.replace("| time | 10 min |", "| time | 5 min |"), ROOT) == [
        "RateLimiter: the default of max_backoff_delay is 600.0"
    ]
