"""A first use of an installed graphweave, by itself: `python smoke.py {cpp,eager}` in an environment of its own.

It imports nothing of the repository. With "cpp", kernels must run; with "eager", a compiled function must give eager
mode's numbers without one, and must say so once. The last line is what was found, as JSON.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import graphweave

NODES, EDGES, FEATURES = 200, 1500, 16
DATA = ("py.typed", "runtime/native/graphweave", "ir/message/GRAMMAR.md")


def gcn_loss(x: Tensor, edge_index: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A loss on some nodes of two layers of a GCN, in plain PyTorch. How many nodes these are depends on the data, for
    which PyTorch breaks the graph where graphweave's trace has failed."""
    src, dst = edge_index
    scale = torch.zeros(x.size(0), dtype=x.dtype).index_add(0, dst, x.new_ones(dst.size(0))).add(1).rsqrt()
    for weight in (first, second):
        h = (x @ weight) * scale[:, None]
        x = torch.relu((h + torch.zeros_like(h).index_add(0, dst, h[src])) * scale[:, None])
    return x[dst.bincount(minlength=x.size(0)) > 5].square().mean()


def values(function: Callable[..., Tensor], arguments: list[Tensor]) -> list[Tensor]:
    """The loss and its gradients."""
    leaves = [a.clone().requires_grad_() if a.is_floating_point() else a for a in arguments]
    loss = function(*leaves)
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def main(expected: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    arguments = [
        torch.randn(NODES, FEATURES), torch.randint(NODES, (2, EDGES)),
        torch.randn(FEATURES, FEATURES), torch.randn(FEATURES, 8),
    ]  # fmt: skip
    compiled = graphweave.compile(gcn_loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(values(compiled, arguments), values(gcn_loss, arguments), rtol=1e-10, atol=1e-12)
    told = [str(w.message) for w in caught if "graphweave" in str(w.message)]
    counters = graphweave.counters()
    launches = counters["kernel_launches"]
    if expected == "cpp":
        breaks = counters["graph_breaks"]
        found = f"{launches} launches, {breaks} graph breaks, warnings {told}"
        assert launches and not breaks and not told, f"expected kernels of one graph without a warning (got {found})"
    else:
        assert not launches and len(told) == 1, f"expected no kernel and one warning (got {counters}, {told})"
    folder = Path(graphweave.__file__).parent
    absent = [part for part in DATA if not (folder / part).exists()]
    assert not absent, f"expected the package's data in {folder} (missing: {absent})"
    facts = {"graphweave": graphweave.__version__, "torch": torch.__version__, "folder": str(folder), "told": told}
    print(json.dumps(facts | {"launches": launches}))


if __name__ == "__main__":
    main(sys.argv[1])
