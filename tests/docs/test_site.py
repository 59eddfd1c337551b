"""The site: every page is in its menu and says what it is for, and nothing of it needs a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).parents[2]
MENU = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
OUTSIDE = {"index.md", "contributing.md", "examples.md"}
"""Pages that `docs/site.py` takes from elsewhere."""

needs_mkdocs = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs the packages of the extra `site`",
)


def test_every_page_is_in_the_menu_once() -> None:
    assert sorted(MENU) == sorted({*PAGES, *OUTSIDE})


@pytest.mark.parametrize("page", [page for page in PAGES if "/" not in page and page != "design.md"])
def test_a_page_says_what_it_is_for(page: str) -> None:
    first = (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n\n")[1]
    assert first.startswith("This page "), first


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so that any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder], cwd=ROOT, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@needs_mkdocs
def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    pages, sheets = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) >= len(MENU) and sheets
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src(?:set)?=\"?([^\" >]+)", text)
        loaded += re.findall(r"<link[^>]* href=\"?([^\" >]+)", text)
        assert loaded and not [one for one in loaded if "//" in one], page
        assert not [tag for tag in re.findall(r"<img[^>]*>", text) if not re.search(r"alt=\"[^\"]+\"", tag)], page
    for sheet in sheets:
        found = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^)\"']*)", sheet.read_text(encoding="utf-8"))
        assert not found, sheet


@pytest.mark.slow
@needs_mkdocs
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_search_works_in_files(site: Path) -> None:
    """A page that is opened as a file finds words, and says nothing in the console."""
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=20000", "--dump-dom", f"{(site / 'index.html').as_uri()}?q=attention"],
        check=True, capture_output=True, text=True, timeout=patience.seconds(),
    )  # fmt: skip
    assert re.search(r"md-search-result__meta\">\d+ matching documents", done.stdout)
    assert "CONSOLE" not in done.stderr, done.stderr
