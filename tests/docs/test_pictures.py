"""Pictures of the documents: drawings are as they are drawn now, and every picture is used and told in words."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from docs.drawings import drawn
from docs.made import PAGES, ROOT

FOLDER = ROOT / "docs/pictures"
_PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]*)">\s*</picture>')
SHOWN = [(page, *found) for page in PAGES for found in _PICTURE.findall(page.read_text(encoding="utf-8"))]
"""Page, dark picture, light picture, its words."""


@pytest.mark.parametrize("name", drawn())
def test_a_drawing_is_what_is_drawn_now(name: str) -> None:
    text = drawn()[name]
    assert (FOLDER / name).read_text(encoding="utf-8") == text, "run `python -m docs.pictures`"
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_every_picture_is_shown_and_told_in_words() -> None:
    used = set()
    for page, dark, light, words in SHOWN:
        assert dark == light.replace(".svg", "_dark.svg")
        for picture in (dark, light):
            used.add((page.parent / picture).resolve())
        title = re.search(r"<title>(.*?)</title>", (page.parent / light).read_text(encoding="utf-8"), re.DOTALL)
        if title is not None:
            assert words == unescape(title[1]).replace('"', "'"), f"{light} on {page.name}"
        assert len(words.split()) > 5
    assert used == set(FOLDER.glob("*.svg"))
