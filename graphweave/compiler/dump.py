"""The text of every stage of every compilation: as numbered files (GRAPHWEAVE_DUMP), and as artifacts in PyTorch's
structured trace (TORCH_TRACE), which `tlparse` shows."""

from __future__ import annotations

import itertools

from torch._logging._internal import LazyTraceHandler, trace_log, trace_structured

from graphweave.core.settings import settings
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.show import show

_number = itertools.count()


def stages_wanted() -> bool:
    """Whether the text of each stage is to be kept, so that compilations must pass through all of them."""
    return settings().dump is not None or _is_traced()


def dump_text(name: str, text: str) -> None:
    """Write `text` as the next file of the dump directory, if one is set, and into PyTorch's trace, if there is one."""
    if _is_traced():
        about = {"name": f"graphweave_{name}", "encoding": "string"}
        trace_structured("artifact", lambda: about, payload_fn=lambda: text)
    folder = settings().dump
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{next(_number):04d}_{name}").write_text(text)


def dump_program(name: str, program: Program) -> None:
    if stages_wanted():
        dump_text(f"{name}.message.txt", show(program))


def _is_traced() -> bool:
    """Whether PyTorch writes its trace. Its handler may be there without a folder, and then writes nothing."""
    return any(isinstance(h, LazyTraceHandler) and h.root_dir is not None for h in trace_log.handlers)
