"""Moves within rows: pointwise work, products, features, statistics, types of edges, losses, dtypes, sizes."""

from __future__ import annotations

from tests.fuzz.growing import Growing, family, move

UNARY = family(
    "pointwise",
    {
        "relu": "F.relu({v})",
        "leaky_relu": "F.leaky_relu({v}, 0.2)",
        "elu": "F.elu({v})",
        "gelu": "F.gelu({v})",
        "silu": "F.silu({v})",
        "softplus": "F.softplus({v})",
        "tanh": "{v}.tanh()",
        "sigmoid": "torch.sigmoid({v})",
        "exp": "torch.exp({v}.clamp(max=3))",
        "log": "({v}.abs() + 1).log()",
        "log1p": "torch.log1p({v}.square())",
        "sqrt": "torch.sqrt({v} * {v} + 1)",
        "reciprocal": "1 / (1 + {v} ** 2)",
        "pow": "{v}.pow(3) / 9",
        "sin": "torch.sin({v})",
        "neg": "-{v}",
        "clamp": "{v}.clamp(-1, 1.5)",
        "abs": "{v}.abs()",
        "sign": "{v}.sign() * {v}.detach()",
        "round": "{v} - {v}.detach().floor()",
        "rsub": "1 - {v}",
        "dropout off": "F.dropout({v}, 0.5, training=False)",
        "erf": "torch.erf({v})",
        "logsigmoid": "F.logsigmoid({v})",
        "hardtanh": "F.hardtanh({v})",
        "isfinite": "torch.nan_to_num({v} / {v}.abs().clamp(min=1e-3))",
        "scalar": "{v} * s",
        "compare": "({v} > 0.1).double() * {v}",
        "detach": "{v} * {v}.detach()",
    },
)
BINARY = family(
    "pointwise of two",
    {
        "add": "{v} + {k}",
        "sub": "{v} - {k}",
        "mul": "{v} * {k}",
        "div": "{v} / ({k}.abs() + 1)",
        "maximum": "torch.maximum({v}, {k})",
        "minimum": "torch.min({v}, {k})",
        "where": "torch.where({v} > {k}, {v}, {k} * 2)",
        "addcmul": "torch.addcmul({v}, {v}, {k}, value=0.5)",
        "lerp": "torch.lerp({v}, {k}, 0.3)",
        "add alpha": "torch.add({v}, {k}, alpha=-3)",
        "rows of numbers": "{v} * ({k} if {k}.dim() == 1 else {k}.flatten(1)[:, 0]).view(-1, *[1] * ({v}.dim() - 1))",
        "cat": "torch.cat([{v}, {k}], dim=-1)",
        "cat dim 1": "torch.cat(({v}, {k}), 1)",
        "stack": "torch.stack([{v}, {k}], dim=1)",
        "stack last": "torch.stack((({v}), {k}), -1).sum(-1)",
        "jumping": "torch.stack([{v}, {k}]).max(0).values",
        "dot": "({v} * {k}).sum(-1)",
        "dot keepdim": "({v} * {k}).sum(dim=1, keepdim=True)",
        "einsum dot": "torch.einsum('nf,nf->n', {v}, {k})",
        "outer": "torch.einsum('nf,ng->nfg', {v}, {k}).flatten(1)[:, : {v}.size(1)]",
        "cosine": "F.cosine_similarity({v}, {k}, dim=-1)",
        "distance": "(({v} - {k}) ** 2).sum(-1).add(1e-2).sqrt()",
        "atan2": "torch.atan2({v}, {k}.abs() + 0.5)",
        "gram": "{v}.t() @ {k}",
    },
)
PRODUCT = family(
    "product",
    {
        "matmul": "{v} @ w",
        "linear": "F.linear({v}, w, bias)",
        "einsum": "torch.einsum('nf,fc->nc', {v}, w)",
        "addmm": "torch.addmm(bias, {v}, w)",
        "mm": "torch.mm({v}, w.t())",
        "classes": "{v} @ wc",
        "back and forth": "({v} @ wc) @ wc.t()",
        "part of a weight": "{v}[:, :2] @ w[:2]",
        "vector": "{v} @ bias",
        "mv": "torch.mv({v}, bias)",
        "heads": "torch.stack([{v}, -{v}], 1) * att",
        "attention": "(torch.stack([{v}, {v} * 2], 1) * att).sum(-1)",
        "bias": "{v} + bias",
        "basis": "torch.einsum('nf,hf->nh', {v}, att)",
        "bmm": "torch.bmm({v}.unsqueeze(1), w.expand({v}.size(0), -1, -1)).squeeze(1)",
        "weights of weights": "{v} @ (w @ w.t()).softmax(0)",
        "cat weights": "torch.cat([{v}, {v}.tanh()], 1) @ torch.cat([w, w * 2])",
        "zoo": "F.linear({v}, wc.t()).relu() @ wc.t() + {v}",
    },
)
TYPED = family(
    "types of edges",
    {
        "bmm": "torch.bmm({v}.unsqueeze(1), wt[{m}]).squeeze(1)",
        "einsum": "torch.einsum('ef,efc->ec', {v}, wt[{m}])",
        "matmul": "({v}.unsqueeze(-2) @ wt.index_select(0, {m})).squeeze(-2)",
        "sum": "({v}.unsqueeze(-1) * wt[{m}]).sum(1)",
        "all types": "torch.einsum('ef,rfc->erc', {v}, wt)[torch.arange({m}.size(0)), {m}]",
        "masks": "sum(({m} == r).to({v}.dtype).view(-1, 1) * ({v} @ wt[r]) for r in range(4))",
        "row": "{v} * wt[{m}, 0]",
        "one_hot": "torch.einsum('ef,er,rfc->ec', {v}, F.one_hot({m}, 4).to({v}.dtype), wt)",
    },
)
FEATURES = family(
    "along features",
    {
        "sum": "{v}.sum(-1)",
        "sum keepdim": "{v}.sum(1, keepdim=True)",
        "mean": "{v}.mean(dim=-1)",
        "mean keepdim": "{v} - {v}.mean(1, keepdim=True)",
        "amax": "{v}.amax(-1)",
        "max": "{v}.max(dim=1)[0]",
        "min": "{v}.min(1).values",
        "var": "{v}.var(-1)",
        "var biased": "{v}.var(1, unbiased=False)",
        "std": "({v} + 0.01).std(-1)",
        "norm": "({v}.square().sum(-1) + 1e-3).sqrt()",
        "linalg norm": "torch.linalg.vector_norm({v} + 0.1, dim=-1)",
        "norm method": "({v} + 0.3).norm(dim=1, keepdim=True)",
        "normalize": "F.normalize({v} + 0.2, dim=-1)",
        "logsumexp": "{v}.logsumexp(-1)",
        "softmax": "{v}.softmax(-1)",
        "log_softmax": "F.log_softmax({v}, dim=1)",
        "layer_norm": "F.layer_norm({v}, {v}.shape[-1:])",
        "layer_norm affine": "F.layer_norm({v}, (bias.size(0),), bias, bias)",
        "rms_norm": "{v} * torch.rsqrt({v}.pow(2).mean(-1, keepdim=True) + 1e-5)",
        "group_norm": "F.group_norm({v}, 2)",
        "prod": "({v} / 2).prod(-1)",
        "cumsum": "{v}.cumsum(-1)",
        "sort": "{v}.sort(dim=1).values",
        "topk": "{v}.topk(2, dim=-1).values",
        "argmax": "F.one_hot({v}.argmax(-1), {v}.size(-1)) * {v}",
        "gather": "{v}.gather(1, ({v}.detach() * 7).long().abs() % {v}.size(1))",
        "pad": "F.pad({v}, (1, 2))",
        "glu": "F.glu({v}, -1)",
        "median": "{v}.median(dim=-1).values",
        "diff": "{v}.diff(dim=-1)",
        "flip": "{v}.flip(-1)",
        "roll": "torch.roll({v}, 1, dims=1)",
        "tril": "torch.tril({v})",
        "count": "({v} > 0).sum(-1) * {v}.sum(-1)",
    },
)
ALL_ROWS = family(
    "along rows",
    {
        "sum": "{v} - {v}.sum(0) / 9",
        "mean": "{v} - {v}.mean(0)",
        "mean keepdim": "{v} * {v}.mean(dim=0, keepdim=True)",
        "var": "{v} / ({v}.var(0) + 1).sqrt()",
        "std": "{v} / ({v}.std(0, keepdim=True) + 1)",
        "amax": "{v} - {v}.amax(0)",
        "softmax": "{v}.softmax(0)",
        "logsumexp": "{v} - torch.logsumexp({v}, 0)",
        "batch norm": "({v} - {v}.mean(0)) / torch.sqrt({v}.var(0, unbiased=False) + 1e-2)",
        "F.batch_norm": "F.batch_norm({v}, None, None, bias, training=True)",
        "pair norm": "{v} / (1e-3 + {v}.pow(2).sum(-1).mean()).sqrt()",
        "cumsum": "{v}.cumsum(0) / 4",
        "cummax": "{v}.cummax(0).values",
        "norm": "{v} / ({v}.norm() + 1)",
        "all": "{v} * {v}.sum()  / 9",
        "flip": "{v}.flip(0)",
        "roll": "torch.roll({v}, 2, 0)",
        "sort": "{v}.sort(0)[0]",
        "sort rows": "{v}[torch.argsort({v}.reshape({v}.size(0), -1)[:, 0])]",
        "topk": "{v} - {v}.topk(min(2, {v}.size(0)), dim=0).values.sum(0)",
        "rank": "{v} * torch.argsort(torch.argsort({v}, 0), 0)",
        "similar": "({v} @ {v}.t()).softmax(-1) @ {v}",
        "covariance": "{v} @ ({v}.t() @ {v}) / 9",
        "arange": "{v} * torch.arange({v}.size(0)).view(-1, *[1] * ({v}.dim() - 1)) / 4",
        "arange row": "{v}[torch.arange({v}.size(0))]",
        "scatter columns": "{v}.index_add(1, torch.zeros({v}.size(1), dtype=torch.long), {v})",
    },
)
GROUPED = family(
    "statistics of groups",
    {
        "var": "(lambda s: s({v} ** 2) - s({v}) ** 2)(lambda t: pyg.scatter(t, {m}.long(), 0, {n}, 'mean'))",
        "std": "(pyg.scatter(({v} - pyg.scatter({v}, {m}.long(), 0, {n}, 'mean')[{m}]) ** 2, {m}.long(), 0, {n}, "
        "'sum') + 1e-2).sqrt()",
        "softmax aggregation": "pyg.scatter(pyg.softmax({v}, {m}.long(), num_nodes={n}) * {v}, {m}.long(), 0, {n}, "
        "'sum')",
        "max minus min": "pyg.scatter({v}, {m}.long(), 0, {n}, 'max') - pyg.scatter({v}, {m}.long(), 0, {n}, 'min')",
        "several": "torch.cat([pyg.scatter({v}, {m}.long(), 0, {n}, how) for how in ('sum', 'mean', 'max')], -1)",
        "logsumexp": "pyg.scatter({v}.clamp(max=5).exp(), {m}.long(), 0, {n}, 'sum').add(1e-3).log()",
    },
)
LOSS = family(
    "loss",
    {
        "cross_entropy": "F.cross_entropy({v} @ wc, label)",
        "cross_entropy none": "F.cross_entropy({v} @ wc, label, reduction='none')",
        "nll": "F.nll_loss(F.log_softmax({v} @ wc, -1)[nmask], label[nmask], reduction='sum')",
        "smoothing": "F.cross_entropy({v} @ wc, label, label_smoothing=0.1)",
        "ignore": "F.cross_entropy({v} @ wc, torch.where(nmask, label, -100), reduction='sum')",
        "picked": "-torch.log_softmax({v} @ wc, 1)[torch.arange(label.size(0)), label]",
        "gather": "({v} @ wc).gather(1, label.view(-1, 1)).squeeze(1)",
        "mse": "F.mse_loss({v}, {k}.detach() * 2)",
        "bce": "F.binary_cross_entropy_with_logits({v}, ({k} > 0).to({v}.dtype))",
        "l1": "F.l1_loss({v}, {k} * 1.5, reduction='sum')",
        "huber": "F.smooth_l1_loss({v}, {k}.tanh())",
        "margin": "(1 - {v}.mean(-1) + {k}.mean(-1)).clamp(min=0).sum()",
        "kl": "F.kl_div(F.log_softmax({v}, -1), F.softmax({k}, -1), reduction='batchmean')",
    },
)
DTYPES = family(
    "dtypes",
    {
        "float": "{v}.float().double()",
        "to float32": "({v}.to(torch.float32) * 2).to(torch.float64)",
        "half": "{v}.half().double()",
        "bfloat16": "{v}.to(torch.bfloat16).to({v}.dtype)",
        "long": "{v} + {v}.detach().long()",
        "int": "{v} * {v}.detach().to(torch.int32)",
        "bool": "{v} * {v}.detach().bool()",
        "float32 sum": "{v}.float().sum(-1).double()",
        "type_as": "({v} > 0).type_as({v}) + {v}",
        "integer rows": "{v} * torch.arange({v}.size(-1), dtype=torch.int32)",
        "python bool": "{v} + True",
        "float32 weight": "({v}.float() * torch.linspace(0, 1, {v}.size(-1))).to({v}.dtype)",
    },
)
INTEGERS = family(
    "integers",
    {
        "times": "{v} * {k}",
        "add": "{v} + {k}",
        "remainder": "{v} * ({k} % 2)",
        "compare": "torch.where({k} > 1, {v}, {v} - {k})",
        "floor": "{v} * ({k} // 2)",
        "cast": "{v} - {k}.to(torch.int32).to({v}.dtype)",
        "equal": "{v} * ({k} == 1)",
        "minus": "{v} * ({k} - 1).clamp(min=0)",
    },
)
SIZES = family(
    "sizes",
    {
        "ratio": "{v} * ({v}.size(0) / 8)",
        "mean by hand": "{v} / max({v}.shape[0], 1)",
        "scale": "{v} / math.sqrt({v}.size(-1))",
        "numel": "{v} * {v}.numel() / 16",
        "branch": "({v} * 2 if {v}.size(0) > 8 else {v} - 1)",
        "none at all": "({v} if {v}.numel() == 0 else {v} + {v}.amax())",
        "no edges": "({v} * 2 if src.numel() == 0 else {v} + 1)",
        "one edge": "({v} * 3 if src.size(0) == 1 else {v} if len(bsrc) <= 2 else {v} * 0.5)",
        "equal sizes": "({v} * 2 if src.size(0) == x.size(0) else {v} * 3 if bsrc.size(0) == y.size(0) else {v})",
        "once an edge": "sum([{v} * 0.5**k for k in range(min(src.size(0), 3))], {v} * 0)",
        "dims but those of 1": "{v} * (1 + e.squeeze(0).dim() + src[:2].squeeze().dim())",
        "dims of selected": "{v} * (1 + e[emask].squeeze(0).dim())",
        "two rows": "({v}[0] + {v}[-1] if {v}.size(0) > 1 else {v}.sum(0)) + {v}",
        "half the rows": "torch.cat([{v}[: {v}.size(0) // 2] * 2, {v}[{v}.size(0) // 2 :]])",
        "loop over columns": "sum(c * i for i, c in enumerate({v}.unbind(-1)))",
        "full": "{v} + torch.full({v}.shape, {v}.size(0) * 0.1, dtype={v}.dtype)",
        "eye": "torch.eye({v}.size(0), dtype={v}.dtype) @ {v}",
        "adjacency": "torch.zeros({v}.size(0), {v}.size(0), dtype={v}.dtype).index_put((dst, src), a, "
        "accumulate=True) @ {v}",
        "int of a tensor": "{v} * int(4.0)",
        "float of sizes": "{v} * float({v}.size(0)) * 0.1",
        "edges per node": "{v} * (src.size(0) / max(x.size(0), 1))",
        "linspace": "{v} + torch.linspace(-1, 1, {v}.size(0), dtype={v}.dtype).view(-1, *[1] * ({v}.dim() - 1))",
    },
)


@move(12)
def pointwise(g: Growing) -> None:
    v = g.pick()
    g.new(g.spell(UNARY, v=v.name), v.rows)


@move(12)
def pointwise_of_two(g: Growing) -> None:
    v = g.pick()
    k = g.pick(v.rows)
    text = g.spell(BINARY, v=v.name, k=k.name)
    g.new(text, "" if g.pending[-1].endswith("gram") else v.rows)


@move(7)
def product(g: Growing) -> None:
    v = g.pick(fits=g.dims(2, 3))
    g.new(g.spell(PRODUCT, v=v.name), v.rows)


@move(3)
def typed(g: Growing) -> None:
    m = g.pick(kind="map", into="R")
    v = g.pick(m.rows, fits=g.dims(2))
    g.new(g.spell(TYPED, v=v.name, m=m.name), m.rows)


@move(6)
def features(g: Growing) -> None:
    v = g.pick(fits=g.dims(2, 3))
    g.new(g.spell(FEATURES, v=v.name), v.rows)


@move(5)
def along_rows(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    g.new(g.spell(ALL_ROWS, v=v.name), v.rows)


@move(3)
def grouped(g: Growing) -> None:
    m = g.pick(kind="map", fits=lambda m: m.into != "R")
    g.new(g.spell(GROUPED, v=g.pick(m.rows).name, m=m.name, n=g.rows_of(m.into)), m.into)


@move(3)
def loss(g: Growing) -> None:
    v = g.pick("N" if g.rng.random() < 0.7 else None, fits=g.dims(1, 2))
    k = g.pick(v.rows)
    g.new(g.spell(LOSS, v=v.name, k=k.name), "")


@move(2)
def dtypes(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    text = g.spell(DTYPES, v=v.name)
    g.new(text, v.rows)


@move(5)
def sizes(g: Growing) -> None:
    v = g.pick(fits=g.dims(1, 2, 3))
    g.new(g.spell(SIZES, v=v.name), v.rows)


@move(2)
def integers(g: Growing) -> None:
    """Whole numbers that meet real ones."""
    k = g.pick(kind="int")
    v = g.pick(k.rows)
    column = f"{k.name}.view(-1, *[1] * ({v.name}.dim() - 1))"
    g.new(g.spell(INTEGERS, v=v.name, k=column), v.rows)
