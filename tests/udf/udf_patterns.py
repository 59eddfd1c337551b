"""Reduce functions as users write them: each is one way of using a mailbox.

Fields: messages `m`, `n` [nodes, mailbox, F] or [nodes, mailbox, H, C] and `s` [nodes, mailbox]; data `q` of the
features' shape and `z` [nodes].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Pattern = Callable[[Any], Any]
Box = Callable[[Any], Any]


def on(field: str, function: Callable[[Any], Any]) -> Pattern:
    return lambda nodes: {"o": function(nodes.mailbox[field])}


def _reductions() -> dict[str, Box]:
    out: dict[str, Box] = {}
    for name in ("sum", "mean", "amax", "amin", "prod", "std", "var", "logsumexp", "argmax", "argmin"):
        for dim in (1, -2):
            for keepdim in (False, True):
                out[f"m.{name}({dim}, {keepdim})"] = _method(name, dim, keepdim)
                out[f"torch.{name}({dim}, {keepdim})"] = _function(name, dim, keepdim)
    for name in ("any", "all"):
        out[f"m.{name}"] = lambda m, name=name: getattr(m > 0.3, name)(1)
        out[f"torch.{name}"] = lambda m, name=name: getattr(torch, name)(m > 0.3, dim=1, keepdim=True)
    for name in ("max", "min"):
        out[f"m.{name}.values"] = lambda m, name=name: getattr(m, name)(1).values
        out[f"m.{name}[0]"] = lambda m, name=name: getattr(m, name)(dim=1)[0]
        out[f"torch.{name}.indices"] = lambda m, name=name: getattr(torch, name)(m, 1)[1]
        out[f"m.{name} keepdim"] = lambda m, name=name: getattr(m, name)(-2, keepdim=True)[0]
    return out


def _method(name: str, dim: int, keepdim: bool) -> Box:
    return lambda m: getattr(m, name)(dim=dim, keepdim=keepdim)


def _function(name: str, dim: int, keepdim: bool) -> Box:
    return lambda m: getattr(torch, name)(m, dim, keepdim=keepdim)


MAILBOX: dict[str, Box] = {
    **_reductions(),
    "std biased": lambda m: m.std(1, unbiased=False),
    "std positional": lambda m: torch.std(m, 1, False),
    "var correction": lambda m: torch.var(m, 1, correction=0),
    "var correction half": lambda m: m.var(dim=1, correction=0.5),
    "var features": lambda m: m.var(-1, unbiased=False, keepdim=True).sum(1),
    "norm 1": lambda m: m.norm(1, 1),
    "norm 2": lambda m: m.norm(dim=1),
    "norm 3": lambda m: m.norm(p=3, dim=1, keepdim=True),
    "norm inf": lambda m: torch.norm(m, float("inf"), 1),
    "linalg norm": lambda m: torch.linalg.norm(m, dim=1),
    "linalg vector_norm": lambda m: torch.linalg.vector_norm(m, 3, dim=1),
    "norm of features": lambda m: m.norm(dim=-1).sum(1),
    "normalize features": lambda m: F.normalize(m, dim=-1).sum(1),
    "normalize messages": lambda m: (F.normalize(m, dim=1) * m).sum(1),
    "sum of all": lambda m: m.sum((1, -1)),
    "sum of features, then messages": lambda m: m.sum(-1).sum(1),
    "sum of features kept": lambda m: (m.sum(-1, keepdim=True) * m).sum(1),
    "mean of both": lambda m: m.mean(dim=[1, 2]),
    "axis": lambda m: m.sum(axis=1),
    "nansum": lambda m: torch.nansum(m, 1),
    "count_nonzero": lambda m: (m > 0).sum(1),
    "sum dtype": lambda m: (m * 8).round().sum(1, dtype=torch.float32),
    "softmax": lambda m: (m.softmax(1) * m).sum(1),
    "F.softmax": lambda m: (F.softmax(m, dim=1) * m).sum(1),
    "torch.softmax": lambda m: (torch.softmax(m, -2) * m).sum(-2),
    "softmax of features": lambda m: (m.softmax(-1) * m).sum(1),
    "nn.Softmax": lambda m: (torch.nn.Softmax(dim=1)(m) * m).sum(1),
    "softmin": lambda m: (F.softmin(m, dim=1) * m).sum(1),
    "log_softmax": lambda m: (F.log_softmax(m, 1) * m).sum(1),
    "log_softmax of features": lambda m: m.log_softmax(-1).sum(1),
    "softmax by hand": lambda m: (m - m.amax(1, keepdim=True)).exp().sum(1),
    "max of features": lambda m: m.max(-1)[0].sum(1),
    "argmax of features": lambda m: m.argmax(-1).sum(1),
    "centred": lambda m: ((m - m.mean(1, keepdim=True)) ** 2).sum(1),
    "divided by size": lambda m: m.sum(1) / m.shape[1],
    "divided by size()": lambda m: m.sum(1) / m.size(1),
    "divided by size(dim=)": lambda m: m.sum(1) / m.size(dim=1),
    "messages divided": lambda m: (m / m.shape[1]).sum(1),
    "multiplied by size": lambda m: m.mean(1) * m.shape[1],
    "size multiplied": lambda m: m.size(1) * m.mean(1),
    "size in place": lambda m: torch.div(m.sum(1), m.shape[1]),
    "root of size": lambda m: m.sum(1) / m.shape[1] ** 0.5,
    "size plus": lambda m: m.sum(1) / (m.shape[1] + 1),
    "size minus": lambda m: m.sum(1) / (2 + m.shape[1] - 1),
    "added size": lambda m: m.sum(1) + m.shape[1],
    "view": lambda m: m.view(m.shape[0], m.shape[1], -1).sum(1),
    "view of sizes": lambda m: m.view(m.size(0), m.size(1), 1, -1).sum(1),
    "reshape": lambda m: m.reshape(*m.shape[:2], -1, 1).sum(1),
    "flatten": lambda m: m.flatten(2).sum(1),
    "torch.flatten": lambda m: torch.flatten(m, start_dim=2, end_dim=-1).sum(1),
    "unsqueeze": lambda m: m.unsqueeze(-1).sum(1),
    "unsqueeze before": lambda m: m.unsqueeze(1).sum(2).squeeze(1),
    "squeeze": lambda m: m.unsqueeze(2).squeeze(2).sum(1),
    "squeeze nothing": lambda m: m.unsqueeze(1).squeeze(1).sum(1),
    "transpose": lambda m: m.transpose(1, 2).sum(2),
    "T of features": lambda m: m.unsqueeze(-1).mT.sum(1),
    "swapaxes": lambda m: m.swapaxes(-1, 1).sum(-1),
    "movedim": lambda m: m.movedim(1, -1).sum(-1),
    "cat": lambda m: torch.cat([m, m * 2], -1).sum(1),
    "stack": lambda m: torch.stack([m, -m], 2).sum(1),
    "stack before": lambda m: torch.stack([m, m.exp()], dim=1).amax(2),
    "split": lambda m: torch.cat(torch.split(m, 1, -1)[::-1], -1).sum(1),
    "chunk": lambda m: m.chunk(2, dim=-1)[0].sum(1),
    "unbind": lambda m: m.unbind(-1)[0].sum(1),
    "select": lambda m: m.select(-1, 0).sum(1),
    "narrow": lambda m: m.narrow(-1, 0, 1).sum(1),
    "index": lambda m: m[:, :, 0].sum(1),
    "index last": lambda m: m[..., -1].sum(1),
    "slice": lambda m: m[..., 0:1].sum(1),
    "slice steps": lambda m: m[:, :, ::2].sum(1),
    "new dim": lambda m: m[:, :, None].sum(1),
    "new last dim": lambda m: m[..., None].sum(1),
    "all of it": lambda m: m[:].sum(1),
    "index_select": lambda m: m.index_select(-1, torch.tensor([0, 0])).sum(1),
    "flip": lambda m: m.flip(-1).sum(1),
    "index list": lambda m: m[..., [0, 0]].sum(1),
    "index tensor": lambda m: m[..., torch.tensor([0, 0, 0])].sum(1),
    "where": lambda m: torch.where(m > 0, m, m * 0.1).sum(1),
    "where scalar": lambda m: torch.where(m > 0, m, 0.0).sum(1),
    "m.where": lambda m: m.where(m > 0, -m).sum(1),
    "masked_fill": lambda m: m.masked_fill(m < 0, 0.5).sum(1),
    "maximum of row": lambda m: (m == m.amax(1, keepdim=True)).sum(1),
    "clamp": lambda m: m.clamp(-0.5, 0.5).sum(1),
    "clamp min": lambda m: m.clamp(min=0.1).sum(1),
    "torch.clamp": lambda m: torch.clamp(m, max=0.2).sum(1),
    "dropout": lambda m: F.dropout(m, 0.0).sum(1),
    "dropout at rest": lambda m: F.dropout(m, 0.5, training=False).sum(1),
    "nn.Dropout": lambda m: torch.nn.Dropout(0.0)(m).sum(1),
    "leaky_relu": lambda m: F.leaky_relu(m, 0.2).sum(1),
    "relu": lambda m: F.relu(m).sum(1),
    "m.relu": lambda m: m.relu().sum(1),
    "torch.relu": lambda m: torch.relu(m).sum(1),
    "gelu": lambda m: F.gelu(m).sum(1),
    "elu": lambda m: F.elu(m).sum(1),
    "silu": lambda m: F.silu(m).sum(1),
    "tanh": lambda m: torch.tanh(m).sum(1),
    "m.tanh": lambda m: m.tanh().sum(1),
    "sigmoid": lambda m: torch.sigmoid(m).sum(1),
    "nn.ReLU": lambda m: torch.nn.ReLU()(m).sum(1),
    "nn.LeakyReLU": lambda m: torch.nn.LeakyReLU(0.3)(m).sum(1),
    "operators": lambda m: (2 - m * 3 + m / 2 - (-m) ** 2 + abs(m)).sum(1),
    "reflected": lambda m: (1 / (m * m + 1) + 2**m + 3 - m).sum(1),
    "comparisons": lambda m: ((m > 0) & ~(m > 1) | (m <= -1) ^ (m >= 5)).sum(1),
    "pow": lambda m: m.abs().pow(1.5).sum(1),
    "exp": lambda m: m.exp().sum(1).log1p(),
    "float": lambda m: (m * 8).round().float().sum(1),
    "to": lambda m: (m * 8).round().to(torch.float32).sum(1),
    "to device": lambda m: m.to(m.device).sum(1),
    "type_as": lambda m: (m > 0).type_as(m).sum(1),
    "long": lambda m: m.long().sum(1),
    "mean of bools": lambda m: (m > 0).double().mean(1),
    "detach": lambda m: (m.detach() * m).sum(1),
    "contiguous": lambda m: m.contiguous().clone().sum(1),
    "zeros_like": lambda m: (m + torch.zeros_like(m)).sum(1),
    "ones_like": lambda m: torch.ones_like(m).sum(1),
    "mm of norms": lambda m: torch.einsum("nkf,nkf->nk", m, m).sum(1),
    "einsum sum": lambda m: torch.einsum("nkf->nf", m),
    "einsum gram": lambda m: torch.einsum("nkf,nkg->nfg", m, m),
    "einsum transposed": lambda m: torch.einsum("nkf,nkg->ngf", m, m * 2),
    "bmm": lambda m: torch.bmm(m.transpose(1, 2), m),
    "bmm by weights": lambda m: torch.bmm(m.sum(-1, keepdim=True).transpose(1, 2), m).squeeze(1),
    "matmul transposed": lambda m: m.transpose(1, 2) @ m.softmax(1),
    "m.mT": lambda m: m.mT @ m,
    "len": lambda m: m.sum(1) * (len(m.shape) + m.dim() + m.ndim),
}
"""Patterns on a mailbox of one feature dim."""


def _with_q(function: Callable[[Any, Any], Any]) -> Pattern:
    return lambda nodes: {"o": function(nodes.mailbox["m"], nodes.data["q"])}


def _attention(nodes: Any) -> dict[str, Any]:
    a = F.softmax(F.leaky_relu(nodes.mailbox["s"] + nodes.data["z"].unsqueeze(1)), dim=1)
    return {"o": (a.unsqueeze(-1) * nodes.mailbox["m"]).sum(1), "top": a.max(1)[0]}


def _torch_attention(nodes: Any) -> dict[str, Any]:
    keys, values = nodes.mailbox["n"], nodes.mailbox["m"]
    score = torch.bmm(keys, nodes.data["q"].unsqueeze(-1)).squeeze(-1)
    return {"o": torch.bmm(score.softmax(1).unsqueeze(1), values).squeeze(1)}


def _pairwise(nodes: Any) -> dict[str, Any]:
    m, s = nodes.mailbox["m"], nodes.mailbox["s"]
    margin = F.relu(s.unsqueeze(-1) - m + 0.1)
    return {"o": margin.sum(1), "loss": (margin.mean(-1) * s).mean(1, keepdim=True)}


NODES: dict[str, Pattern] = {
    "compared": _with_q(lambda m, q: (m > q.unsqueeze(1)).sum(1)),
    "added": _with_q(lambda m, q: (m + q.unsqueeze(1)).amax(1)),
    "from the left": _with_q(lambda m, q: (q.unsqueeze(1) - m).norm(dim=1)),
    "new dim": _with_q(lambda m, q: (q[:, None] * m).sum(1)),
    "maximum": _with_q(lambda m, q: torch.maximum(m, q.unsqueeze(1)).sum(1)),
    "where": _with_q(lambda m, q: torch.where(m > q.unsqueeze(1), m, q.unsqueeze(1)).sum(1)),
    "scalars": lambda nodes: {"o": (nodes.mailbox["m"] * nodes.data["z"].view(-1, 1, 1)).sum(1)},
    "kept": _with_q(lambda m, q: (m / (1 + m.abs().sum(1, keepdim=True) + q.unsqueeze(1) ** 2)).sum(1)),
    "update": _with_q(lambda m, q: torch.tanh(m.sum(1) + q)),
    "expand_as": _with_q(lambda m, q: (q.unsqueeze(1).expand_as(m) * m).sum(1)),
    "cat with rows": _with_q(lambda m, q: torch.cat([m, q.unsqueeze(1).expand_as(m)], -1).sum(1)),
    "expand": _with_q(lambda m, q: (q.unsqueeze(1).expand(-1, m.shape[1], -1) * m).sum(1)),
    "repeat": _with_q(lambda m, q: (q.unsqueeze(1).repeat(1, m.size(1), 1) * m).sum(1)),
    "einsum": _with_q(lambda m, q: torch.einsum("nkf,nf->nk", m, q).softmax(1).max(1)[0]),
    "einsum outer": _with_q(lambda m, q: torch.einsum("nkf,ng->nfg", m, q)),
    "matmul": _with_q(lambda m, q: torch.matmul(m, q.unsqueeze(-1)).sum(1)),
    "batch_size": lambda nodes: {"o": nodes.mailbox["s"].sum(1) + 0 * nodes.data["z"].view(nodes.batch_size())},
    "numbers": lambda nodes: {"o": nodes.nodes() + nodes.mailbox["s"].argmax(1)},
    "scalar messages": lambda nodes: {"o": nodes.mailbox["s"].sum(1), "p": nodes.mailbox["s"].logsumexp(-1)},
    "scalar weights": lambda nodes: {"o": (nodes.mailbox["s"].softmax(1).unsqueeze(2) * nodes.mailbox["m"]).sum(1)},
    "scalar matmul": lambda nodes: {"o": (nodes.mailbox["s"].unsqueeze(1) @ nodes.mailbox["m"]).squeeze(1)},
    "two mailboxes": lambda nodes: {"o": (nodes.mailbox["m"] * nodes.mailbox["n"]).amin(1)},
    "constant": lambda nodes: {"o": nodes.data["q"] * 2},
    "attention": _attention,
    "attention by bmm": _torch_attention,
    "pairwise margin": _pairwise,
}
"""Patterns that combine mailboxes with data of nodes."""

HEADS: dict[str, Pattern] = {
    "sum": on("m", lambda m: m.sum(1)),
    "heads summed": on("m", lambda m: m.sum(2).amax(1)),
    "heads flattened": on("m", lambda m: m.flatten(2).mean(1)),
    "heads viewed": on("m", lambda m: m.view(m.shape[0], m.shape[1], -1).std(1, unbiased=False)),
    "softmax of heads": lambda nodes: {
        "o": ((nodes.mailbox["m"] * nodes.mailbox["n"]).sum(-1, keepdim=True).softmax(1) * nodes.mailbox["m"]).sum(1)
    },
    "permuted": on("m", lambda m: m.permute(0, 2, 1, 3).logsumexp(2)),
    "bmm of heads": on("m", lambda m: m.transpose(1, 2).transpose(2, 3) @ m.transpose(1, 2)),
    "einsum of heads": lambda nodes: {"o": torch.einsum("nkhc,nhc->nkh", nodes.mailbox["m"], nodes.data["q"]).amax(1)},
    "weights of heads": lambda nodes: {
        "o": torch.einsum("nkh,nkhc->nhc", nodes.mailbox["n"].sum(-1).softmax(1), nodes.mailbox["m"])
    },
    "one head": on("m", lambda m: m[:, :, 0].sum(1)),
    "one channel": on("m", lambda m: m[:, :, :, -1].amax(1)),
    "weights by matmul": lambda nodes: {
        "o": (nodes.mailbox["n"].mean(3).softmax(1).transpose(1, 2).unsqueeze(2) @ nodes.mailbox["m"].transpose(1, 2))
    },
}
"""Patterns on mailboxes [nodes, mailbox, heads, channels]."""


def closures(weight: torch.Tensor, bias: torch.Tensor) -> dict[str, Pattern]:
    """Functions of shared data: `weight` [F, F] and `bias` [F], parameters."""

    def linear(m: Any) -> Any:
        return F.linear(m, weight, bias)

    return {
        "matmul": on("m", lambda m: (m @ weight).amax(1)),
        "torch.matmul": on("m", lambda m: torch.matmul(m, weight).sum(1)),
        "transposed": on("m", lambda m: (m @ weight.t() + bias).relu().sum(1)),
        "linear": on("m", lambda m: linear(m).relu().mean(1)),
        "two layers": on("m", lambda m: linear(linear(m).tanh()).sum(1)),
        "einsum": on("m", lambda m: torch.einsum("nkf,fg->nkg", m, weight).logsumexp(1)),
        "einsum summed": on("m", lambda m: torch.einsum("nkf,fg->ng", m, weight)),
        "einsum score": on("m", lambda m: torch.einsum("nkf,f->nk", m, bias).softmax(1).amax(1)),
        "vector": on("m", lambda m: (m @ bias).softmax(1).amax(1)),
        "scaled": on("m", lambda m: (m * bias).sum(1)),
        "from the left": on("m", lambda m: (bias - m).abs().sum(1)),
        "dot": on("m", lambda m: (m * bias).sum(-1, keepdim=True).softmax(1).amax(1)),
        "attention": lambda nodes: {
            "o": ((linear(nodes.mailbox["n"]).tanh() * bias).sum(-1, keepdim=True).softmax(1) * nodes.mailbox["m"]).sum(
                1
            )
        },
        "after": on("m", lambda m: F.linear(m.sum(1), weight, bias)),
        "where": on("m", lambda m: torch.where(m > bias, m, bias).sum(1)),
    }
