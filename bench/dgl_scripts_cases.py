"""The full-graph scripts of DGL's examples that `bench.dgl_scripts` runs: their files, arguments and graphs.

This file imports the standard library only, because DGL's virtual environment reads it, too.
"""

from __future__ import annotations

from dataclasses import dataclass

ENDLESS = 1_000_000
"""Epochs for a script that can be told a number: more than are ever run."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script of DGL's `examples/`, with the arguments that let it run long enough.

    `epochs`: how many a run has, where the script fixes the number. `kind`: the graph that it reads, one whose nodes
    have labels ("nodes"), or typed nodes and edges ("relations").
    """

    path: str
    arguments: tuple[str, ...] = ()
    epochs: int = ENDLESS
    kind: str = "nodes"


def _many(option: str, *more: str) -> tuple[str, ...]:
    return (option, str(ENDLESS), *more)


_PATIENT = ("--early-stopping", str(ENDLESS))
_RGCN_HETERO = _many("--n-epochs", "-d", "aifb", "--testing")

SCRIPTS: dict[str, Script] = {
    "gcn": Script("pytorch/gcn/train.py", epochs=200),
    "gat": Script("pytorch/gat/train.py", epochs=200),
    "gat-core": Script("core/gat/train.py", epochs=200),
    "gatv2": Script("pytorch/gatv2/train.py", _many("--epochs", "--dataset", "cora")),
    "sage": Script("pytorch/graphsage/train_full.py", epochs=200),
    "appnp": Script("pytorch/appnp/train.py", _many("--n-epochs", "--dataset", "cora")),
    "sgc": Script("pytorch/sgc/sgc.py", _many("--n-epochs", "--dataset", "cora")),
    "tagcn": Script("pytorch/tagcn/train.py", _many("--n-epochs", "--dataset", "cora")),
    "monet": Script("pytorch/monet/citation.py", _many("--n-epochs", "--dataset", "cora")),
    "jknet": Script("pytorch/jknet/main.py", _many("--epochs")),
    "dagnn": Script("pytorch/dagnn/main.py", _many("--epochs", *_PATIENT)),
    "mixhop": Script("pytorch/mixhop/main.py", _many("--epochs", *_PATIENT)),
    "arma": Script("pytorch/arma/citation.py", _many("--epochs", *_PATIENT)),
    "geniepath": Script("pytorch/geniepath/pubmed.py", _many("--max_epoch")),
    "geniepath-lazy": Script("pytorch/geniepath/pubmed.py", _many("--max_epoch", "--lazy", "1")),
    "hardgat": Script("pytorch/hardgat/train.py", _many("--epochs", "--dataset", "cora")),
    "grand": Script("pytorch/grand/main.py", _many("--epochs", "--early_stopping", str(ENDLESS))),
    "rgcn": Script("pytorch/rgcn/entity.py", epochs=50, kind="relations"),
    "rgcn-hetero": Script("pytorch/rgcn-hetero/entity_classify.py", _RGCN_HETERO, kind="relations"),
    "rgcn-hetero-api": Script("pytorch/rgcn-hetero/entity_classify_heteroAPI.py", _RGCN_HETERO, kind="relations"),
}
"""Short name -> script. A script's other arguments keep their defaults."""
