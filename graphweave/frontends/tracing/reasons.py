"""Why PyTorch could not trace or compile a function: the whole reason in one line, and the user's line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import torch
from torch import fx

from graphweave.core.lines import calling_function, frames, own_frame, shown_code, shown_frame

_USER_CODE = re.compile(r"\n\s*from user code:\s*\n(.*?)(?=\n\s*\n|\Z)", re.DOTALL)
"""The part of a Dynamo error that shows the user's lines."""
_ADVICE = re.compile(r"^\s*Set TORCH\w*=.*$|^\s*For more details about this graph break.*$", re.MULTILINE)
"""Lines of a Dynamo error that only give advice."""
_OF_SYMBOLS = re.compile(
    r"\A(?:Consider annotating your code using torch\._check\*\(\)\.\s*)?"
    r"(Could not (?:guard|extract)[^\n]*?)(?: \(unhinted:.*)?$.*",
    re.DOTALL | re.MULTILINE,
)
"""PyTorch's page about a size or value that data decides, of which the first sentence says what is wanted."""
_WRAPPED = re.compile(r"\Abackend=.*? raised:\n", re.DOTALL)
"""The prefix that Dynamo adds to a backend's error."""


def one_line(text: str) -> str:
    """A report of Dynamo's in one line: its title and explanation, without hints and without context for developers.

    Any other text is returned whole, without line breaks.
    """
    title, _, rest = _OF_SYMBOLS.sub(r"\1", text).strip().partition("\n")
    found = re.search(r"Explanation: (.*?)(?=\n\s*\n|\n\s*Hint:|\n\s*Developer debug context:|\Z)", rest, re.DOTALL)
    if found is None:
        return " ".join(f"{title}\n{rest}".split()).rstrip(".")
    return " ".join(f"{title.strip().rstrip('.')}. {found[1].strip()}".split()).rstrip(".")


def reason_of(error: BaseException) -> tuple[str, str]:
    """Why tracing or compiling failed, in one line, and the innermost line of the user's code, "file:line" or "".

    If PyTorch has wrapped an exception, the exception inside is the reason.
    """
    text = _ADVICE.sub("", str(error))
    where = _own_line(text)
    text = _WRAPPED.sub("", _USER_CODE.sub("", text))
    return one_line(text) or type(error).__name__, where


def raised_by_user(error: BaseException) -> bool:
    """Whether a trace failed since the code that is traced raises an exception, which nothing in it catches."""
    kind = getattr(error, "gb_type", None) or ""
    return "Observed exception" in kind or (not kind and "Observed exception" in str(error))


def line_of(target: Callable[..., object]) -> str:
    """The first line of a function or of a module's forward, as "file:line"; "" if it has no source."""
    called = getattr(target, "forward", target) if isinstance(target, torch.nn.Module) else target
    code = getattr(inspect.unwrap(called), "__code__", None)
    return shown_code(code) if code is not None else ""


def at(where: str) -> str:
    """The text " (train.py:3)", or "" if no line is known."""
    return f" ({where})" if where else ""


def not_traced(name: str, where: str, why: str) -> str:
    """The warning about a function that PyTorch could not trace."""
    return (
        f"graphweave: {name}{at(where)} runs eagerly, since PyTorch could not trace it: {why}. Change that line, or "
        "call it outside of what is compiled; graphweave.explain lists what is compiled."
    )


def function_name(name: str) -> str:
    """The user's name of a function that Dynamo traces. Our wrapper of it has another name, and so have the
    rest of a function behind a graph break, and a part of a function with a loop that runs as Python."""
    rest = re.fullmatch(r"torch_dynamo_resume_in_(.*)_at_(\d+)", name)
    if rest:
        return f"{function_name(rest[1])}, behind line {rest[2]}"
    part = re.fullmatch(r"(.*)_from_line_(\d+)(?:_\d+)?", name)
    return f"{part[1]}, from line {part[2]}" if part else name.removeprefix("traced_")


def graph_place(module: fx.GraphModule) -> str:
    """The user's function from which a graph was captured, and its first captured line: "forward (train.py:8)"."""
    return next(
        filter(None, (calling_function(n.meta.get("stack_trace") or "") for n in module.graph.nodes)), "a function"
    )


def _own_line(text: str) -> str:
    found = _USER_CODE.search(text)
    own = own_frame(frames(found[1])) if found else None
    return shown_frame(own) if own else ""
