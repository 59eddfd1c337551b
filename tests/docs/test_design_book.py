"""The documents say what the code says: tables and excerpts are as made from it, links lead somewhere."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
import torch

from docs import made
from docs.design.example import gat

BOOK = made.ROOT / "docs/design.md"
TORCH = re.search(r"^TORCH \?= torch==(\d+\.\d+)", (made.ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.usefixtures("fresh_compiler")
def test_tables_and_excerpts_are_what_the_code_gives() -> None:
    if TORCH is None or not torch.__version__.startswith(TORCH[1]):
        pytest.skip("another version of PyTorch captures other graphs than those in the book")
    stale = [p.name for p in made.PAGES if made.written(p.read_text(encoding="utf-8")) != p.read_text(encoding="utf-8")]
    assert not stale, f"run `python -m docs.made`, read what it changed, and mend the words around it: {stale}"


def test_decisions_have_numbers_and_dates() -> None:
    text = made.DECISIONS.read_text(encoding="utf-8")
    found = re.findall(r"^- D(\d+), \d{4}-\d\d-\d\d:$", text, re.MULTILINE)
    assert sorted(map(int, found)) == list(range(1, len(found) + 1))
    today = datetime.date(2030, 1, 2)
    assert made.numbered(text, today) == text, "run `python -m docs.made`"
    assert made.numbered("- D7, 2029-01-01:\n  **Old.**\n- **New.**\n", today).endswith(
        "- D8, 2030-01-02:\n  **New.**\n"
    )


def test_the_example_is_graph_attention() -> None:
    """Weights of a node's edges are positive and add up to 1, so that equal rows stay what they are."""
    x = torch.ones(5, 3)
    weight, attention = torch.randn(3, 4), torch.randn(8, 1)
    out = gat(x, torch.tensor([0, 1, 2]), torch.tensor([1, 1, 3]), weight, attention)
    torch.testing.assert_close(out, x @ weight)


@pytest.mark.parametrize("page", made.PAGES, ids=lambda page: page.relative_to(made.ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path, heading in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)]*))?\)", text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not heading or heading in _headings(target), f"{path} has no heading #{heading}"


def _headings(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_entry_leads_to_every_page() -> None:
    linked = {(BOOK.parent / path).resolve() for path in re.findall(r"\]\(([^)#]+\.md)", BOOK.read_text())}
    assert set((made.ROOT / "docs/design").glob("*.md")) <= linked


@pytest.mark.parametrize("page", made.PAGES, ids=lambda page: page.relative_to(made.ROOT).as_posix())
def test_files_it_names_exist(page: Path) -> None:
    """Paths of Python files and folders in code marks, from the package, from a folder of it, or from the root."""
    roots = [made.ROOT, made.PACKAGE, made.PACKAGE / "frontends", made.PACKAGE / "runtime/native/graphweave"]
    for path in set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|h|cpp|md))`", page.read_text(encoding="utf-8"))):
        assert any((root / path).exists() for root in roots), f"{path} is not there"
