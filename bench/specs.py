"""Models by name: layers of given kinds and widths. Standard library only: DGL's process reads this file, too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

ON_POINTS = "-knn"
"""Suffix of the layers whose graph is made in each call: of the k nearest points, a point itself among them."""

USER_DEFINED = "udf-"
"""Prefix of the layers of bench/udf_layers.py, which are two layers, 64 wide."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Layers of one kind, of widths `widths`, over `heads` heads, with ReLU between them.

    `graph` is a name of bench.named_graphs. `inputs` is the width of the features. `layer` is a kind of
    `bench.workloads.layers_of`, with `-knn` after it if each call makes the graph of nearest points; or udf-NAME for
    the two layers NAME of bench/udf_layers.py, which have fixed widths; or rgcn, gcmc, link for the models of
    bench/papers/tasks.py, which say what their graphs are.
    `pseudo` and `kernels` are the numbers of MoNet's pseudo-coordinates and Gaussian kernels; GCMC has as many bases.
    """

    layer: str
    graph: str = ""
    inputs: int = 64
    widths: tuple[int, ...] = (64, 64)
    heads: int = 1
    pseudo: int = 2
    kernels: int = 3

    @property
    def on_points(self) -> tuple[int, int, int] | None:
        """Clouds, points of each, and neighbours k, of layers whose graph is made in each call."""
        if not self.layer.endswith(ON_POINTS):
            return None
        clouds, points, k = map(int, self.graph.split(":")[1:])
        return clouds, points, k

    def text(self) -> str:
        return json.dumps(asdict(self))


def spec_of(text: str) -> Spec:
    given = json.loads(text)
    return Spec(**{**given, "widths": tuple(given["widths"])})


EDGECONV_WIDTHS = (64, 64, 128, 256)
"""Output widths of the four EdgeConv layers; the input is the points' coordinates."""

SPECS = {
    "gcn": Spec("gcn"),
    "sage": Spec("sage"),
    "gin": Spec("gin"),
    "gat": Spec("gat", heads=4),
    "gat-8x32": Spec("gat", widths=(256, 256), heads=8),
    "gatv2": Spec("gatv2", heads=4),
    "transformer": Spec("transformer", heads=4),
    "monet": Spec("monet"),
    "edgeconv": Spec("edgeconv", inputs=3, widths=EDGECONV_WIDTHS),
    "edgeconv-mlp": Spec("edgeconv-mlp", inputs=3, widths=EDGECONV_WIDTHS),
}
"""The models that benchmarks train, by name. Their inputs are as wide as the features of the graph."""
