"""The part of the release checklist (docs/releasing.md) that needs nothing to be built: `make release-check`.

`python -m release.check` prints what stands in the way of releasing the commit at hand; with `--next`, which `.ci/run`
uses, a changelog that calls the version not released yet is right.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Collection

from release.environment import ROOT, say

_LATER = "(not released yet)"
_KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Headings within a version, as Keep a Changelog has them."""


def problems(*, next_release: bool) -> list[str]:
    """What stands in the way of a release; with `next_release`, of one that follows when its changes are complete."""
    text = (ROOT / "graphweave/__init__.py").read_text(encoding="utf-8")
    changelog = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if version is None:
        return ['graphweave/__init__.py has no line __version__ = "...". It is the one place of the version.']
    if next_release:
        changelog = changelog.replace(f"## {version[1]} {_LATER}\n", f"## {version[1]} - {datetime.date.today()}\n", 1)
    before = set(_git("tag", "--list")) - set(_git("tag", "--points-at", "HEAD"))
    changed = [] if next_release else _git("status", "--porcelain")
    found = [f"files differ from the commit: {', '.join(changed)}. Commit or remove them."] if changed else []
    return version_problems(version[1], changelog, before) + found


def version_problems(version: str, changelog: str, tags: Collection[str]) -> list[str]:
    """Where the changelog or a tag contradicts the version."""
    found = []
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    heading, changes = sections[0] if sections else ("", "")
    if heading == f"{version} {_LATER}":
        found.append(f"docs/changelog.md calls {version} not released. Write the day in place of the words.")
    elif not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", heading):
        found.append(f"docs/changelog.md begins with {heading or 'no version'}. Write: {version} - YEAR-MONTH-DAY.")
    for kind in re.findall(r"^### (.*)$", changes, re.MULTILINE):
        if kind not in _KINDS:
            found.append(f"docs/changelog.md has changes of the kind {kind}. Name one of {', '.join(_KINDS)}.")
    if not re.search(r"^- ", changes, re.MULTILINE):
        found.append(f"docs/changelog.md lists no change of {version}. Add what users notice.")
    if f"v{version}" in tags:
        found.append(f"an earlier commit has the tag v{version}. Raise __version__ in graphweave/__init__.py.")
    return found


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    arguments = argparse.ArgumentParser(description="Print what stands in the way of a release.")
    arguments.add_argument("--next", action="store_true", help="of a later one, when its changes are complete")
    found = problems(next_release=arguments.parse_args().next)
    say("\n".join(found) or "nothing that this checks stands in the way of a release")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
