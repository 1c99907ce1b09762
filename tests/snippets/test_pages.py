"""Every fenced block of the README, the guides and the packages' pages runs, or states why not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pages import chains
from running import ROOT, Rust, lacks, run_chain

PLACES = [
    "*.md",
    "docs/*.md",
    "docs/design/*.md",
    "bindings/*/README.md",
    "core/README.md",
    "cli/README.md",
    "ffi/README.md",
]
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
CHAINS = [chain for page in PAGES for chain in chains(str(page.relative_to(ROOT)), page.read_text())]


BLOCKS = [(number, block) for number, chain in enumerate(CHAINS) for block in chain]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Returns the failures of each selected chain. Chains run side by side, slow builds first."""
    asked = {
        item.callspec.params["number"]
        for item in request.session.items
        if "number" in getattr(item, "fixturenames", ())
    }
    parts = {number: [block for block in CHAINS[number] if block.language == "rust"] for number in asked}
    rust = Rust([block for blocks in parts.values() for block in blocks], tmp_path_factory.mktemp("rust"))
    with ThreadPoolExecutor(4) as pool:
        order = sorted(asked, key=lambda number: not parts[number])
        yield {number: pool.submit(run_chain, CHAINS[number], rust) for number in order if not lacks(CHAINS[number])}


@pytest.mark.parametrize("number, block", BLOCKS, ids=[f"{block.where}:{block.language}" for _, block in BLOCKS])
def test_runs(number, block, results):
    if "not run" in block.marks:
        pytest.skip(f"{block.where}: {block.marks['not run']}")
    if lack := lacks(CHAINS[number]):
        pytest.skip(f"{block.where}: {lack} is not installed")
    if wrong := results[number].result().get(block.where):
        pytest.fail(wrong, pytrace=False)


def test_every_language_is_run():
    run = {block.language for _, block in BLOCKS if "not run" not in block.marks}
    assert run >= {"python", "js", "ts", "c", "cpp", "rust", "sh", "console", "toml"}
