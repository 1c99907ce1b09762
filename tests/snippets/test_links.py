"""Every link of a page to another, to a heading or to a file leads somewhere."""

import re
from collections import Counter

import pytest
from test_pages import PAGES, ROOT

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page):
    """The anchors of a page's headings, as they are made where Markdown is shown."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    seen, made = Counter(), set()
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for path, anchor in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_every_guide_is_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    guides = {page.name for page in PAGES if page.parent == ROOT / "docs"}
    assert {name for name in guides if f"({name})" not in index} == {"README.md"}
