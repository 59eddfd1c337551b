"""A capture as bytes: Dynamo's guards and bytecode for one function, and the graph that they lead to."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch._dynamo.guards import ShapeCodeParts
from torch._dynamo.output_graph import OutputGraphGuardsState
from torch._dynamo.source import GlobalSource
from torch._guards import Source

from graphweave.frontends.captures.digests import Unknown

Named = dict[tuple[str, str], str]
"""For a name in a module, words for what it means (`names.py`)."""


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """All that another process needs in place of a trace, in types of Python's own.

    `named` are words for what was traced, and `asked` those of the guards. Dynamo's `bytecode` has as global variables
    the modules `imports`, and those of `fresh`, which are named anew in each process. `guards` are those and where to
    find the variables (`Guards`), and `graph` is the compiled graph.
    """

    named: Named
    asked: tuple[str, ...]
    imports: dict[str, str]
    fresh: tuple[str, ...]
    guards: bytes
    bytecode: bytes
    graph: bytes

    def as_bytes(self) -> bytes:
        return pickle.dumps(tuple(getattr(self, f.name) for f in fields(self)), protocol=5)

    @staticmethod
    def of_bytes(content: bytes) -> StoredCapture:
        """Of bytes that this user has written: they are unpickled."""
        return StoredCapture(*pickle.loads(content))


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards as PyTorch describes them, and for global variables that are the namespace of a function, its source."""

    state: OutputGraphGuardsState
    sizes: ShapeCodeParts | None
    namespaces: Mapping[str, Source]

    def as_bytes(self, fresh: Mapping[str, object]) -> bytes:
        """Raises Unknown if a part has no meaning in another process."""
        out = io.BytesIO()
        try:
            _GuardPickler(out, fresh).dump((self.state, self.sizes, self.namespaces))
        except Unknown:
            raise
        except Exception as error:  # whatever an object raises that is not made to be kept
            raise Unknown(f"{type(error).__name__}: {error}") from error
        return out.getvalue()

    @staticmethod
    def of_bytes(content: bytes, names: Mapping[str, str]) -> Guards:
        """`names` has the names of this process for variables that are named anew."""
        return Guards(*_GuardUnpickler(content, names).load())


class _GuardPickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, fresh: Mapping[str, object]) -> None:
        super().__init__(out, protocol=5)
        self._fresh = fresh

    def persistent_id(self, value: object) -> object:
        if isinstance(value, GlobalSource) and value.global_name in self._fresh:
            return value.global_name
        return None

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Source):  # without the names and hashes that it has computed
            return _source, (type(value), [getattr(value, f.name) for f in fields(value) if f.init])
        if isinstance(value, torch.Tensor | torch.nn.Module | torch.SymInt | torch.SymFloat):
            raise Unknown(f"a {type(value).__name__} in a guard")
        return NotImplemented


class _GuardUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, names: Mapping[str, str]) -> None:
        super().__init__(io.BytesIO(content))
        self._names = names

    def persistent_load(self, name: Any) -> object:
        return GlobalSource(self._names[name])


def _source(cls: type[Source], values: list[object]) -> Source:
    return cls(*values)
