"""`Certificate`: what `graphweave.check` has found, as text and as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from graphweave.certificate.certificate_page import as_page
from graphweave.certificate.certificate_text import as_text
from graphweave.certificate.findings import Findings
from graphweave.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Certificate(Findings):
    """The findings of `graphweave.check` about one function on given data. It prints as text."""

    def __str__(self) -> str:
        return as_text(self)

    def save(self, path: str | Path) -> None:
        """Write a file: a web page that stands by itself (.html), data (.json), or what `print` shows (.txt)."""
        path = Path(path)
        match path.suffix.lower():
            case ".html":
                text = as_page(self)
            case ".json":
                text = self.json()
            case ".txt":
                text = str(self)
            case _:
                raise SettingsError(
                    f"a certificate is saved as .html, .json or .txt (got {str(path)!r}). Name such a file."
                )
        path.write_text(text, encoding="utf-8")
