"""A loader with DGL's interface: seeds in batches, shuffled by epoch, and what a sampler makes of each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.argument_types import Device
from graphweave.sampling.hops import checked_seed, fold_numbers
from graphweave.sampling.prefetch import Prefetcher


class DrawsBatches(Protocol):
    """The sampler that makes the batches of a `DataLoader`. A sampler that has an attribute `graph` samples that
    graph."""

    def sample(self, seeds: object, epoch: int = 0) -> Any:
        """The batch of `seeds`, a tensor or type -> tensor, as a function of both arguments."""


class DataLoader:
    """The batches that `sampler` makes of `indices`, as DGL's `dgl.dataloading.DataLoader` gives them.

    With a `BlockSampler`, indices are nodes and a batch is (input nodes, output nodes, blocks); with
    `as_edge_prediction_sampler(...)`, indices are edges; with a `ClusterSampler`, clusters; with a `SAINTSampler`,
    numbers of batches.

    Each iteration is an epoch: the first has number 0, unless `set_epoch` says otherwise. The order of the indices is a
    function of `seed` and the epoch, and draws are one of the sampler's seed, the epoch and the batch. Batches are
    therefore the same for any number of threads, and any `prefetch`.
    """

    def __init__(
        self,
        graph: object,
        indices: Tensor | Mapping[object, Tensor],
        sampler: DrawsBatches,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        prefetch: int = 0,
        device: Device | None = None,
    ) -> None:
        """`indices`: integers [n], or type -> such integers; a batch of these is type -> integers, without types that
        have none in it. `drop_last`: whether the last batch is left out if it is smaller. `prefetch`: the number of
        batches that a thread makes ahead. `device`: where tensors and graphs of a batch are moved.

        DataError for indices that are no integers or none, for a batch size or a prefetch that cannot be, and for a
        sampler of another graph.
        """
        if getattr(sampler, "graph", graph) is not graph:
            raise DataError("sampler: expected one of the graph given (got one of another). Make it of this graph.")
        for name, value, least in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise DataError(f"{name} must be an integer of {least} at least (got {value!r}). Pass such a number.")
        self._types, self._type_of, self._indices = _flat(indices)
        self._sampler, self._seed, self._device = sampler, checked_seed(seed), device
        self._size, self._shuffle, self._drop, self._prefetch = batch_size, shuffle, drop_last, prefetch
        self._epoch = 0

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        count = self._indices.numel()
        return count // self._size if self._drop else -(-count // self._size)

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; those after it follow on."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch. With `prefetch`, the thread ends with the iteration, also where the loop is left
        early."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        batches = self._batches(epoch)
        return iter(Prefetcher(batches, depth=self._prefetch)) if self._prefetch else batches

    def _batches(self, epoch: int) -> Iterator[object]:
        order = None
        if self._shuffle:
            generator = torch.Generator().manual_seed(fold_numbers(self._seed, [epoch]))
            order = torch.randperm(self._indices.numel(), generator=generator, device="cpu")
        for number in range(len(self)):
            chosen = slice(number * self._size, (number + 1) * self._size)
            batch = self._sampler.sample(self._seeds(chosen if order is None else order[chosen]), epoch)
            yield batch if self._device is None else move_batch(batch, self._device)

    def _seeds(self, chosen: slice | Tensor) -> Tensor | dict[object, Tensor]:
        found = self._indices[chosen]
        if self._type_of is None:
            return found
        types = self._type_of[chosen]
        return {self._types[i]: found[types == i] for i in types.unique().tolist()}


def _flat(indices: object) -> tuple[list[object], Tensor | None, Tensor]:
    """The types, for each index its position among these (None if indices have no types), and all indices."""
    given = indices if isinstance(indices, Mapping) else {None: indices}
    found = {t: torch.as_tensor(index) for t, index in given.items()}
    for t, index in found.items():
        what = "indices" if t is None else f"indices of type {t!r}"
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool or index.dim() != 1:
            raise DataError(
                f"{what} must be integers of shape [n] (got {index.dtype} {list(index.shape)})."
                " Pass mask.nonzero().view(-1) in place of a mask."
            )
    if not sum(index.numel() for index in found.values()):
        raise DataError("indices: expected one at least (got none). Pass those of which batches are made.")
    flat = torch.cat([index.to("cpu", torch.int64) for index in found.values()])
    if not isinstance(indices, Mapping):
        return [], None, flat
    sizes = torch.tensor([index.numel() for index in found.values()], device="cpu")
    return list(found), torch.arange(len(found), device="cpu").repeat_interleave(sizes), flat


def move_batch(batch: object, device: Device) -> object:
    """A batch with its tensors and graphs on `device`: all that has a method `to`, in lists, tuples and dicts too."""
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(part, device) for part in batch)
    if isinstance(batch, Mapping):
        return {name: move_batch(part, device) for name, part in batch.items()}
    return batch.to(device) if hasattr(batch, "to") else batch
