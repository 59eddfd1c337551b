"""The document around the parts of a report: its style, its contents, and its script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from graphweave.pages.elements import escape

_NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content Security Policy: the document may use what stands in it, and the browser refuses to load anything else."""

_HEADING = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>', re.DOTALL)
"""The heading of a section, as `elements.section` writes it."""

_MIN_LISTED = 3
"""A page with fewer sections than this needs no contents."""


def page(title: str, parts: Sequence[str], *, script: str = "", style: str = "") -> str:
    """One HTML document with all that it needs: `parts` in their order below `title`, styles besides those of all
    pages, and JavaScript that runs at its end. The parts, the style and the script are trusted; `elements.py` makes
    parts, and escapes what they are given."""
    body = "\n".join(parts)
    headings = _HEADING.findall(body)
    contents = "".join(f'<li><a href="#{key}">{heading}</a></li>' for key, heading in headings)
    nav = f'<nav aria-label="Contents"><ul>{contents}</ul></nav>' if len(headings) >= _MIN_LISTED else ""
    # An end tag in a string of JavaScript would end the script; \/ is / there.
    end = f"<script>{script.replace('</', '<' + chr(92) + '/')}</script>\n" if script else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("page.css")}{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header><h1>{escape(title)}</h1>{nav}</header>
<main id="main" tabindex="-1">
{body}
</main>
{end}</body>
</html>
"""


def asset(name: str) -> str:
    """The text of a style sheet or script of this folder."""
    return (files("graphweave.pages") / name).read_text(encoding="utf-8")
