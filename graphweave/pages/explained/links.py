"""Addresses within the page: lines of source code and kernels."""

from __future__ import annotations

from graphweave.pages.elements import Html, join, slug, tag
from graphweave.pages.explained.data import ExplainedData, ShownKernel, ShownPlace


def line_key(place: str) -> str:
    """The address of a line: "src/train.py:8" is "line-src-train-py-8"."""
    return f"line-{slug(place)}"


def kernel_key(key: str) -> str:
    return f"kernel-{slug(key)}"


def place_link(place: ShownPlace) -> Html:
    """The user's line, and the library's line inside it by the name of its file, as links to the source."""
    own = tag("a", place.own, href=f"#{line_key(place.own)}") if place.own else Html("")
    if not place.inner:
        return own
    inner = tag("a", place.inner.rpartition("/")[2], href=f"#{line_key(place.inner)}", title=place.inner)
    return join([own, " (", inner, ")"]) if own else inner


def kernel_link(kernel: ShownKernel) -> Html:
    """A kernel's name as a link to its code, in the colour that it has everywhere on the page."""
    return tag("a", kernel.name, href=f"#{kernel_key(kernel.key)}", class_=kernel_class(kernel), data_kernel=kernel.key)


def kernel_class(kernel: ShownKernel) -> str:
    """The class that gives a kernel its colour, one of six."""
    return f"kernel k{kernel.number % 6}"


def kernels_by_key(data: ExplainedData) -> dict[str, ShownKernel]:
    return {kernel.key: kernel for kernel in data.kernels}
