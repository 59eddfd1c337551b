"""Identifiers of a target for the names of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Names:
    """Gives the IR's names, with underscores appended where the language or the printer uses the same word."""

    def __init__(self, ir_names: Iterable[str], *, taken: Callable[[str], bool], starts: Callable[[str], bool]) -> None:
        """`taken` says which words cannot be names, `starts` which names need other letters in front of them."""
        self._clashes, self._starts = taken, starts
        self._known: dict[str, str] = {}
        self._derived: dict[tuple[str, ...], str] = {}
        ordered = list(dict.fromkeys(ir_names))
        self._taken = set(ordered)
        for name in ordered:
            self._known[name] = self._fresh(name) if taken(name) else name

    def of(self, name: str) -> str:
        return self._known[name]

    def derived(self, *parts: str) -> str:
        """One fresh name for each distinct `parts`, built from them; `of` knows it from then on."""
        if parts not in self._derived:
            hint = "_".join(parts)
            self._derived[parts] = self._fresh(hint) if hint in self._taken or self._clashes(hint) else hint
            self._taken.add(self._derived[parts])
            self._known[self._derived[parts]] = self._derived[parts]
        return self._derived[parts]

    def _fresh(self, name: str) -> str:
        candidate = f"x_{name}" if self._starts(name) else name
        while candidate in self._taken or self._clashes(candidate):
            candidate += "_"
        self._taken.add(candidate)
        return candidate
