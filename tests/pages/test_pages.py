"""Pages of reports: text is escaped, a document is well formed, loads nothing, and can be read by any reader."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from graphweave.pages.elements import Html, code, escape, facts, figure, fold, join, section, slug, table, tag
from graphweave.pages.frame import asset, page

HOSTILE = """</script><img src=x onerror="alert(1)">&'"""
"""Text that would load something and run if it were not escaped."""

_VOID = {"meta", "link", "br", "img", "hr", "input"}


class _Reader(HTMLParser):
    """Reads a document, and asserts that each element is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


def read(document: str) -> _Reader:
    reader = _Reader()
    reader.feed(document)
    reader.close()
    assert not reader.open
    return reader


def hostile_page() -> str:
    parts = [
        section(HOSTILE, join(["plain", Html("<b>bold</b>")]), note=HOSTILE),
        section("Numbers", table([HOSTILE, "n"], [[HOSTILE, 12345], ["b", 0.12345]], HOSTILE), key="numbers"),
        figure("<svg viewBox='0 0 1 1'></svg>", HOSTILE, HOSTILE),
        facts({HOSTILE: HOSTILE, "none": None, "yes": True}),
        fold(HOSTILE, code(HOSTILE), key="folded"),
        section("Last", "text"),
    ]
    return page(HOSTILE, parts, script=f"const text = `{HOSTILE}`;")


def test_text_is_escaped_wherever_it_stands() -> None:
    reader = read(hostile_page())
    assert [name for name, _ in reader.found if name == "img"] == []
    assert [name for name, _ in reader.found].count("script") == 1
    assert not any(key.startswith("on") for _, attributes in reader.found for key in attributes)
    assert reader.text.count("onerror") >= 10


def test_a_page_loads_nothing() -> None:
    reader = read(hostile_page())
    loading = [a[key] for _, a in reader.found for key in ("src", "href", "srcset", "action", "data") if key in a]
    assert [link for link in loading if link is None or not link.startswith(("#", "data:"))] == []
    assert "@import" not in asset("page.css") and "url(" not in asset("page.css")


def test_contents_lead_to_the_sections() -> None:
    reader = read(hostile_page())
    names = [a["id"] for _, a in reader.found if "id" in a]
    links = [(a["href"] or "")[1:] for name, a in reader.found if name == "a"]
    assert links == ["main", slug(HOSTILE), "numbers", "last"]
    assert set(links) <= set(names) and len(set(names)) == len(names)
    assert "<nav" not in page("Short", [section("One", "text")])


def test_a_page_says_what_screens_and_readers_ask_for() -> None:
    found = read(hostile_page()).found
    assert ("html", {"lang": "en"}) in found
    assert any(name == "meta" and a.get("name") == "viewport" for name, a in found)
    assert [a["aria-label"] for name, a in found if a.get("role") == "img"] == [HOSTILE]
    assert {a["scope"] for name, a in found if name == "th"} == {"row", "col"}
    assert [name for name, _ in found].count("h1") == 1


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("a<b", "a&lt;b"),
        (Html("<b>"), "<b>"),
        (12345, "12,345"),
        (0.12345, "0.123"),
        (8376.5, "8,376"),
        (-12345.0, "-12,345"),
        (float("inf"), "inf"),
        (None, "&ndash;"),
        (True, "yes"),
    ],
)
def test_each_kind_of_content(content: str | float | None, shown: str) -> None:
    assert escape(content) == shown


def test_attributes_of_an_element() -> None:
    assert tag("p", "x", class_="a", aria_label='"', hidden=True, id=None, open=False) == (
        '<p class="a" aria-label="&quot;" hidden>x</p>'
    )


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_stands_out_from_paper_and_panel(scheme: int) -> None:
    """WCAG 2 AA: a ratio of 4.5 for text."""
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", asset("page.css").split("@media")[scheme]))
    texts = colors.keys() - {"paper", "panel", "rule", "mark"}
    assert len(texts) == 12
    for behind in ("paper", "panel"):
        for text in texts:
            light, dark = sorted((_luminance(colors[behind]), _luminance(colors[text])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {behind}"
