"""The runner finds the fault of a page: each of these pages has one."""

import pytest
from pages import BadPage, chains
from running import Rust, lacks, run_chain


def page(*lines):
    return "\n".join(lines)


def fenced(language, *lines):
    return page(f"```{language}", *lines, "```")


def run(text, tmp_path):
    """Returns the failures of a page, by line."""
    groups = chains("page.md", text)
    rust = Rust([block for chain in groups for block in chain if block.language == "rust"], tmp_path)
    return {where: error for chain in groups for where, error in run_chain(chain, rust).items()}


STORE = "from workglow_limit import Store"
BROKEN = {
    "python that raises": fenced("python", STORE, "Store('memory:').limiter('x', 'nonsense')"),
    "python that asserts": fenced("python", "assert 1 == 2"),
    "python that warns": fenced("python", "import warnings", "warnings.warn('old', DeprecationWarning)"),
    "js that throws": fenced("js", "import { Store } from 'workglow-limit';", "new Store('nonsense:');"),
    "js that rejects": fenced("js", "await Promise.reject(new Error('no'));"),
    "ts of wrong type": fenced("ts", "const n: number = 'text';", "console.log(n);"),
    "ts that throws": fenced("ts", "import { Store } from 'workglow-limit';", "new Store('nonsense:');"),
    "c that does not compile": fenced("c", "#include <workglow_limit.h>", "int main(void) { return wgl_nothing(); }"),
    "c that fails": fenced("c", "int main(void) { return 3; }"),
    "c++ that does not compile": fenced("cpp", "int main() { return nothing; }"),
    "rust that does not compile": fenced("rust", "fn main() { nothing(); }"),
    "sh that fails": fenced("sh", "false | cat"),
    "toml of no limits": fenced("toml", "[stripe]", "allowed = 'many'"),
    "json that is none": fenced("json", "{ 1 }"),
    "a session with other output": fenced("console", "$ echo one", "two"),
    "an unknown language": fenced("cobol", "STOP RUN."),
    "a block without language": fenced("", "make"),
    "other output": page(fenced("python", "print(1)"), "", "<!-- prints -->", fenced("text", "2")),
    "a program that ends in the background": page(
        "<!-- background -->", fenced("sh", "touch gone", "exit 3"),
        "<!-- continues -->", fenced("sh", "until test -e gone; do sleep 0.1; done", "sleep 1"),
    ),
    "a hidden check": page(fenced("python", "n = 1"), "<!-- after", "assert n == 2", "-->"),
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_page_fails(text, tmp_path):
    assert run(text, tmp_path)


GOOD = {
    "python": page(fenced("python", "print(1)"), "<!-- prints -->", fenced("text", "1")),
    "one program": page(fenced("python", "n = 1"), "<!-- continues -->", fenced("python", "assert n == 1")),
    "one folder": page("<!-- file: n.py -->", fenced("python", "n = 1"), "<!-- continues -->", fenced("sh", "grep n n.py")),
    "an earlier folder": page(
        "<!-- file: n -->", fenced("sh", "touch here"), fenced("sh", "test ! -e here"), "<!-- continues: n -->",
        fenced("sh", "test -e here"),
    ),
    "hidden": page("<!-- before", "n = 1", "-->", fenced("python", "n += 1"), "<!-- after", "assert n == 2", "-->"),
    "a session": fenced("console", "$ date +%Y; echo two", "1970", "two", "$ true"),
    "text": fenced("text", "anything"),
    "in the background": page(
        "<!-- background -->", fenced("sh", "sleep 600"), "<!-- continues -->", fenced("sh", "true")
    ),
    "not run": page("<!-- not run: it needs the moon -->", fenced("sh", "false")),
}  # fmt: skip


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_page_passes(text, tmp_path):
    assert run(text, tmp_path) == {}


def test_blocks_after_a_broken_one_are_not_reached(tmp_path):
    wrong = run(page(fenced("sh", "false"), "<!-- continues -->", fenced("js", "1;")), tmp_path)
    assert list(wrong) == ["page.md:1", "page.md:5"] and "not reached" in wrong["page.md:5"]


@pytest.mark.parametrize(
    "needs, text",
    [("redis-server", fenced("python", "url = 'redis://localhost/1'")), ("redis-server", fenced("js", "({ port: 6379 });")),
     ("cmake", fenced("cmake", "project(app)")), ("c++", fenced("cpp", "int main() {}")), ("sqlite3", fenced("console", "$ sqlite3 a"))],
)  # fmt: skip
def test_a_missing_program_is_named(needs, text, monkeypatch):
    (chain,) = chains("page.md", text)
    assert lacks(chain) is None
    monkeypatch.setattr("shutil.which", lambda name: None if name == needs else name)
    assert lacks(chain) == needs


def test_blocks_do_not_share_a_folder(tmp_path):
    wrong = run(page(fenced("sh", "touch here"), fenced("sh", "test -e here")), tmp_path)
    assert list(wrong) == ["page.md:4"]


def test_errors_name_the_line_of_the_page(tmp_path):
    wrong = run(page("A page.", "", fenced("python", "", "1 / 0")), tmp_path)
    assert "line 5" in wrong["page.md:3"]


def test_redis_is_started_for_the_page(tmp_path):
    lines = ["import socket, sys", "from urllib.parse import urlsplit", "url = urlsplit('redis://localhost/0')"]
    lines += ["assert url.port not in (None, 6300 + 79)", "socket.create_connection((url.hostname, url.port)).close()"]
    assert run(fenced("python", *lines), tmp_path) == {}


@pytest.mark.parametrize(
    "text, message",
    [
        (page("<!-- not run -->", fenced("sh", "false")), "without the reason"),
        (page("<!-- not run:  -->", fenced("sh", "false")), "without the reason"),
        (page("<!-- not run: it needs the moon -->", "words"), "has no block after it"),
        (page("<!-- continues -->", fenced("sh", "true")), "has no matching block before it"),
        (page("<!-- continues: n -->", fenced("sh", "true")), "has no matching block before it"),
        (page("```python", "1"), "is not closed"),
        (page("<!-- before", "1"), "is not closed"),
    ],
)
def test_invalid_marks_are_reported(text, message):
    with pytest.raises(BadPage, match=f"page.md:1: .*{message}"):
        chains("page.md", text)
