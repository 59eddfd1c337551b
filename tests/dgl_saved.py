"""Writes the files of `tests/golden/dgl` with DGL's `save_graphs`: `.venv-dgl/bin/python tests/dgl_saved.py FOLDER`.

Runs in DGL's environment (`make bench-peers` makes it), so it imports neither graphweave nor pytest.
"""

import sys
from pathlib import Path

import dgl
import torch

HEADER, USED = 4096, 32
"""DGL writes a header of so many bytes, of which it sets the first ones."""


def save(file, graphs, labels=None, formats=None):
    """`save_graphs`, after which the unset bytes of the header are zero, so that they are the same each time."""
    dgl.save_graphs(str(file), graphs, labels, formats)
    written = bytearray(file.read_bytes())
    written[USED:HEADER] = bytes(HEADER - USED)
    file.write_bytes(written)


def one_graph():
    g = dgl.graph((torch.tensor([2, 0, 1, 2]), torch.tensor([0, 1, 2, 0])), num_nodes=5)
    g.ndata["feat"] = torch.arange(10.0).view(5, 2)
    g.ndata["label"] = torch.tensor([0, 1, 0, 1, 1])
    for part, rows in (("train", [0, 3]), ("val", [1]), ("test", [2, 4])):
        g.ndata[f"{part}_mask"] = torch.tensor([node in rows for node in range(5)])
    g.edata["w"] = torch.tensor([0.5, 1.0, 1.5, 2.0]).half()
    return g


def typed_graph():
    def ends(src, dst):
        return torch.tensor(src, dtype=torch.int32), torch.tensor(dst, dtype=torch.int32)

    g = dgl.heterograph({
        ("author", "to", "paper"): ends([0, 1, 1], [1, 0, 2]), ("paper", "to", "author"): ends([1], [0]),
        ("paper", "cites", "paper"): ends([], []),
    })  # fmt: skip
    g.nodes["author"].data["feat"] = torch.tensor([[1.0], [2.0]])
    g.nodes["paper"].data["labels"] = torch.tensor([0, 1, 0])
    g.nodes["paper"].data["train_mask"] = torch.tensor([True, False, False])
    g.nodes["paper"].data["test_mask"] = torch.tensor([False, True, True])
    g.edges["author", "to", "paper"].data["when"] = torch.tensor([[7], [8], [9]])
    return g


def small_graphs():
    graphs = [dgl.graph((torch.arange(n - 1), torch.arange(1, n))) for n in (2, 3, 4, 2, 3)]
    for g in graphs:
        g.ndata["attr"] = torch.arange(float(g.num_nodes()))
    return graphs, {"labels": torch.tensor([[0], [1], [2], [0], [1]])}


def triples():
    """What DGL's data sets of knowledge graphs save: each triple, then its inverse, which is in no split."""
    head, tail = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0])
    g = dgl.graph((torch.cat([head, tail]), torch.cat([tail, head])))
    relation = torch.tensor([0, 1, 0, 1])
    g.edata["etype"] = torch.cat([relation, relation + 2])
    for part, edges in (("train", [0, 1]), ("valid", [2]), ("test", [3])):
        g.edata[f"{part}_edge_mask"] = torch.tensor([edge in edges for edge in range(8)])
    return g


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "one.bin", one_graph())
    save(folder / "typed.bin", typed_graph())
    save(folder / "small.bin", *small_graphs())
    save(folder / "triples.bin", triples())
    save(folder / "by_column.bin", [one_graph(), typed_graph()], {"y": torch.tensor([3, 4])}, ["csc"])
    save(folder / "by_both.bin", one_graph().formats(["csr", "csc"]), None, ["csr", "csc"])
    dgl.data.save_tensors(str(folder / "tensors.bin"), {"a": torch.arange(3), "b": torch.ones(2, 2).bfloat16()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
