"""Process-wide event counts, so that "it was compiled" and "it was cached" are facts a test can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

COUNTERS: dict[str, str] = {
    "compilations": "graphs handed over by torch.compile and compiled",
    "restored_graphs": "graphs handed over by torch.compile whose compilation was restored from disk",
    "unstored_graphs": "graphs whose compilation cannot be kept on disk",
    "kernel_launches": "calls of generated kernels",
    "divided_launches": "regions whose rows of many edges were divided among threads, each time they ran on the CPU",
    "fallback_calls": "ATen calls made by compiled programs for what was not fused",
    "format_builds": "graph formats (CSR, columns, checked indices) built",
    "format_hits": "graph formats found in the cache",
    "live_drops": "what was kept for tensors in use (formats, results) and dropped, GRAPHWEAVE_FORMAT_BYTES being full",
    "unseen_edits": "edits of index tensors noticed that PyTorch does not see",
    "kernel_builds": "kernel texts compiled by the C++ compiler",
    "kernel_cache_hits": "kernels loaded from the disk cache",
    "kernel_damaged": "damaged or truncated files found in the disk cache and rebuilt",
    "hoist_builds": "graph-only subprograms computed",
    "hoist_hits": "graph-only subprograms whose results were still valid",
    "reorderings": "tensors of features put into the order in which nodes lie near each other",
    "restored_captures": "functions that were not traced, since what a trace of theirs led to was on disk",
    "unstored_captures": "traces of functions that cannot be kept on disk",
    "tunings": "graphs whose form and schedules were sought by measuring",
    "tuning_hits": "graphs whose form and schedules an earlier search had kept on disk",
    "forms_made": "forms of compiled functions that were made because another graph made them necessary",
    "form_switches": "calls of compiled functions that ran another form than the call before",
    "forms_refused": "forms of compiled functions that could not be made, so that another one runs",
    "parts_traced_once": "calls in equal parts of graphs, of which PyTorch traced one part for all",
    "parts_unfolded": "graphs whose equal parts were traced one by one after all",
    "graph_breaks": "graph breaks reported by capture",
    "bucketed_reductions": "reduce functions run once for each number of messages, not being expressible at once",
    "relations_apart": "calls on several relations in JAX that ran relation by relation, not being one program",
    "cuda_graph_captures": "calls of compiled programs captured as CUDA graphs",
    "cuda_graph_replays": "calls of compiled programs that replayed a CUDA graph",
    "cuda_graph_skips": "calls that ran as they are though CUDA graphs were asked for, since they cannot be captured",
    "cuda_graph_failures": "captures that failed; the program runs as it is from then on",
    "exchanges": "exchanges of halo rows with other ranks, forward and back",
    "exchange_hits": "exchanges left out, since no rank's rows had changed",
    "halo_bytes": "bytes of halo rows sent to other ranks",
    "overlapped_kernels": "kernels of which one part ran while rows travelled between ranks",
    "all_reduces": "values summed (or otherwise reduced) over all ranks by compiled programs",
    "eager_fallbacks": "whole functions that ran eagerly instead of compiled",
}
"""Name -> meaning of every counter; the set is fixed."""

_counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)


def bump(name: str, n: int = 1) -> None:
    """Adds n to a counter. No lock: the interpreter never switches threads inside this statement."""
    _counts[name] += n


def counters() -> dict[str, int]:
    """A copy of all counts since start or since `reset_counters`; the keys are those of `COUNTERS`."""
    return dict(_counts)


def reset_counters() -> None:
    for name in _counts:
        _counts[name] = 0


@contextmanager
def kept_as_they_are() -> Iterator[None]:
    """The counters keep their values while the block runs."""
    before = dict(_counts)
    try:
        yield
    finally:
        _counts.update(before)
