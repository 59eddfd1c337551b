"""Types of what a file of JSON holds."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON: name -> text, number, bool, None, list or object. Those who read a field check what it is."""
