"""The module that `graphweave.compile` returns for a module."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from graphweave.frontends.dynamo.loaded_later import LoadedLater
from graphweave.frontends.dynamo.uncompiled import method


class CompiledModule(torch.nn.Module):
    """A module that shares parameters, buffers, submodules and attributes with `original` and runs compiled.

    `isinstance` reports the original's class, since code that asks wants to use the attributes of that class.
    """

    def __init__(
        self,
        original: torch.nn.Module,
        dynamic: bool | None,
        options: Mapping[str, object] | None,
        fullgraph: bool = False,
        background: bool = False,
    ) -> None:
        super().__init__()
        self.__dict__.update(
            _parameters=original._parameters,
            _buffers=original._buffers,
            _modules=original._modules,
            _non_persistent_buffers_set=original._non_persistent_buffers_set,
            training=original.training,
            _gw_original=original,
            _gw_arguments=(dynamic, options, fullgraph),
            _gw_background=background,
        )
        self._make_call()

    @property  # type: ignore[misc]
    def __class__(self) -> type[torch.nn.Module]:  # type: ignore[override]
        original = self.__dict__.get("_gw_original")
        return CompiledModule if original is None else original.__class__

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self._gw_call(*args, **kwargs)

    def _make_call(self) -> None:
        """Make what runs compiled, and a forward with the signature of the original's, which torch.export reads."""
        original, (dynamic, options, fullgraph) = self._gw_original, self._gw_arguments
        call = LoadedLater(original, dynamic, options, fullgraph, self._gw_background)

        @functools.wraps(original.forward)
        def forward(*args: object, **kwargs: object) -> object:
            return call(*args, **kwargs)

        self.__dict__.update(_gw_call=call, forward=forward)

    def train(self, mode: bool = True) -> CompiledModule:
        self._gw_original.train(mode)
        self.__dict__["training"] = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__["_gw_original"]
            return method(original, name, getattr(original, name))

    def __setattr__(self, name: str, value: torch.Tensor | torch.nn.Module) -> None:
        if "_gw_original" in self.__dict__:
            setattr(self._gw_original, name, value)
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Used by copies and pickles, which would otherwise make an object of the class that `__class__` returns."""
        return _blank, (), self.__getstate__()

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_gw_call", "forward")}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._make_call()

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        return f"compiled {type(self.__dict__['_gw_original']).__name__}"


def _blank() -> CompiledModule:
    return CompiledModule.__new__(CompiledModule)
