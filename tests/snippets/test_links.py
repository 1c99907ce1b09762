"""Links between pages, to headings and to files have a target."""

import re
from collections import Counter

import pytest
from test_pages import PAGES, ROOT

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page):
    """Returns a page's anchors: those that Markdown makes from headings, and explicit `<a id>`s."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    seen, made = Counter(), set(re.findall(r'<a id="([^"]+)"></a>', prose))
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page):
    broken = []
    for path, anchor in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_every_guide_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    guides = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert {name for name in guides if f"({name})" not in index} == {"README.md"}


def test_files_that_the_design_names_exist():
    files = [
        f"/{path.relative_to(ROOT)}"
        for place in ("bench", "cli", "core", "tests")
        for path in ROOT.glob(f"{place}/**/*.*")
    ]
    missing = []
    for page in (ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/design/*.md")):
        for name in re.findall(r"`([\w/-]+\.(?:rs|lua|sql|py))`", page.read_text()):
            if not any(file.endswith(f"/{name}") for file in files):
                missing.append(f"{page.name}: {name}")
    assert missing == []
