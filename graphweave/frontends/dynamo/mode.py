"""The argument `mode` of torch.compile."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.errors import SettingsError

MODES = (None, "default", "reduce-overhead")
"""The modes of torch.compile that this backend takes."""


def with_mode(mode: str | None, options: Mapping[str, object] | None) -> dict[str, object]:
    """`options` with the option that torch.compile's `mode` stands for. Raises SettingsError if the two contradict each
    other, and for an unknown mode."""
    if options is not None and not isinstance(options, Mapping):
        raise SettingsError(f"options must be a dict such as {{'verify': True}} (got {options!r}). Pass one.")
    if mode not in MODES:
        known = ", ".join(repr(m) for m in MODES)
        measures = isinstance(mode, str) and mode.startswith("max-autotune")
        advice = "For choices by measuring, pass options={'schedule': 'tune'}." if measures else (
            "Other choices are options. Pass those.")  # fmt: skip
        raise SettingsError(f"mode must be one of {known} (got {mode!r}). {advice}")
    if mode != "reduce-overhead":
        return dict(options or {})
    asked = {"cuda_graphs": True, **(options or {})}
    if asked["cuda_graphs"] is False:
        raise SettingsError(
            "mode='reduce-overhead' asks for CUDA graphs, options={'cuda_graphs': False} for none."
            " Leave out one of them."
        )
    return asked
