"""The types of arguments of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

_MOST = 1 << 63
"""Whole numbers are below this, so that they fit into 64 bits."""


def _number(text: str, kind: Callable[[str], float], allowed: Callable[[float], bool], words: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = float("nan")
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"must be {words} (got {text!r})")
    if kind is int and value >= _MOST:
        raise argparse.ArgumentTypeError(f"must be below 2^63 (got {text!r}). Pass a smaller number")
    return value


def positive_int(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 1, "a whole number above 0"))


def count(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 0, "a whole number, 0 or above"))


def positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def not_negative(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < float("inf"), "a number, 0 or above")


def fanout(text: str) -> tuple[int, ...]:
    words = "whole numbers, -1 for all neighbours, as 10,10"
    return tuple(int(_number(part, int, lambda n: n >= -1, words)) for part in text.split(","))


def share(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def parts(text: str) -> tuple[float, ...] | tuple[str, ...]:
    """Three shares, or two times."""
    found = tuple(part.strip() for part in text.split(","))
    if len(found) == 2:
        return found
    if len(found) != 3:
        raise argparse.ArgumentTypeError(
            f"must be two times or three shares (got {text!r}). Write shares as 0.6,0.2,0.2"
        )
    return tuple(share(part) for part in found)
