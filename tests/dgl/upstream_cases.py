"""The tests of DGL that `tests.dgl.upstream` runs, the group of each, and those that are left out with the reason."""

from __future__ import annotations

import re

GROUPS: dict[str, tuple[str, ...]] = {
    "graph": (
        "common/test_convert.py", "common/test_generators.py", "common/test_merge.py", "common/test_homophily.py",
        "common/test_label_informativeness.py", "common/test_random.py", "common/test_frame.py",
        "common/data/test_serialize.py", "pytorch/test_heterograph-pickle.py",
    ),
    "heterograph": (
        "common/test_heterograph.py", "common/test_heterograph-misc.py", "common/test_heterograph-pickle.py",
        "common/test_heterograph-remove.py", "common/test_heterograph-specialization.py",
        "common/test_heterograph-index.py", "common/test_heterograph-shared-memory.py",
    ),
    "batch": ("common/test_batch-graph.py", "common/test_batch-heterograph.py"),
    "readout": ("common/test_readout.py",),
    "transform": (
        "common/transforms/test_functional-sort.py", "common/transforms/test_to_block.py",
        "common/transforms/test_transform.py", "common/test_subgraph.py", "common/test_traversal.py",
    ),
    "edge_softmax": ("common/ops/test_edge_softmax.py",),
    "message passing": (
        "common/function/test_basics.py", "common/ops/test_ops.py", "common/test_heterograph-apply-edges.py",
        "common/test_heterograph-kernel.py", "common/test_heterograph-update-all.py", "common/test_propagate.py",
        "pytorch/mpops/test_edgewise.py",
    ),
    "nn": ("pytorch/nn/test_nn.py", "pytorch/nn/conv/test_gatedgcnconv.py"),
    "geometry": ("pytorch/geometry/test_geometry.py",),
}  # fmt: skip
"""Group -> files below DGL's tests/python."""

INTERNALS = "internals of DGL: the C interface, its index classes, columns of frames"
SHARED_MEMORY = "graphs in named shared memory"
DISTRIBUTED = "distributed stores and partitions"
GPU = "needs a GPU or pinned memory"
OLD_FILES = "files that old versions of DGL wrote, and files of tensors that DGL is to read"
DATA = "downloads a data set"

EXCLUDED: tuple[tuple[str, str], ...] = (
    (r"common/test_heterograph-index\.py", INTERNALS),
    (r"common/test_frame\.py", INTERNALS),
    (r"test_partition_with_halo|test_metis_partition|test_reorder_nodes", DISTRIBUTED),
    (r"test_graph_index_is_unibipartite|test_pickling_index|test_pickling_graph_index", INTERNALS),
    (r"common/test_heterograph\.py::(test_reverse|test_frame)\b", INTERNALS),
    (r"test_use_libxsmm_switch", INTERNALS),
    (r"test_load_old_files|test_deserialize_old|test_serialize_tensors|test_serialize_empty_dict", OLD_FILES),
    (r"common/test_heterograph-shared-memory\.py", SHARED_MEMORY),
)
"""(pattern of a test's name, reason): cases that are about something that this package does not want to have."""


def group_of(nodeid: str) -> str:
    """The group of a test by its name, "path::test[case]"."""
    for group, files in GROUPS.items():
        if any(file in nodeid for file in files):
            return group
    return "other"


def reason_to_exclude(nodeid: str) -> str | None:
    """Why a test is left out; None for those that count."""
    return next((reason for pattern, reason in EXCLUDED if re.search(pattern, nodeid)), None)
