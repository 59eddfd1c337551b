"""Hooks of the site (mkdocs): pages and pictures that lie outside of `docs/`, and links to them.

README is the home page; CONTRIBUTING and the list of examples are pages. Pictures of `bench/results` and programs of
`examples` are copied. A link to any other file of the repository is shown as its path, since the site does not hold it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "examples/README.md": "examples.md"}
"""Pages outside of `docs/`, and their names on the site."""
COPIED = ("bench/results/figures/*.png", "examples/*.py", "examples/*.sh", "examples/*.ipynb")
"""Files outside of `docs/` that the site has under their own names."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>')


def on_files(files: Files, config: Any) -> Files:
    for page, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / page).read_text(encoding="utf-8")))
    for path in sorted(path for pattern in COPIED for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    names = {name: path for path, name in PAGES.items()}
    here = PurePosixPath(names.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def linked(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        found = _on_site(here, path)
        if files.get_file_from_path(found) is None:
            return f"`{text}`" if text.replace("/", "").isidentifier() else text
        to = _from(PurePosixPath(page.file.src_uri).parent, found)
        return f"{picture}[{text}]({to}{'#' + anchor if anchor else ''})"

    return _outside_of_code(markdown, lambda text: _PICTURE.sub(_two_pictures, _LINK.sub(linked, text)))


def _two_pictures(match: re.Match[str]) -> str:
    """A picture for light and for dark pages, of which the site shows one by its own switch."""
    dark, light, words = (part.removeprefix("docs/") for part in match.groups())
    return f'<div class="picture" markdown>\n![{words}]({light}#only-light)\n![{words}]({dark}#only-dark)\n</div>'


def _on_site(here: PurePosixPath, link: str) -> str:
    """The name on the site of what a page links to."""
    parts: list[str] = []
    for part in (here.parent / link).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    path = "/".join(parts)
    return PAGES.get(path, path.removeprefix("docs/"))


def _from(folder: PurePosixPath, name: str) -> str:
    return "../" * len(folder.parts) + name


def _outside_of_code(markdown: str, changed: Any) -> str:
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else changed(part) for i, part in enumerate(parts))
