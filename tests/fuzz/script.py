"""A finding as a script of a few lines that anybody can run: it raises, or prints what differs."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tests.fuzz.case import HEADER, Call, Case
from tests.fuzz.divided import over_parts
from tests.fuzz.effects import REGISTERED
from tests.fuzz.judge import Finding

_DOORS = {
    "graphweave": "graphweave.compile(f)",
    "plain": 'torch.compile(f, backend="graphweave")',
    "plain dynamic": 'torch.compile(f, backend="graphweave", dynamic=True)',
    "plain static": 'torch.compile(f, backend="graphweave", dynamic=False)',
}
_CONTEXTS = {"train": "torch.enable_grad()", "no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}

_RUN = '''

def numbers(function, arguments):
    """What the function gives, and the gradients of its arguments."""
    random.seed(0)
    with {context}:
        results = function(*arguments)
    results = results if isinstance(results, (list, tuple)) else [results]
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    torch.manual_seed(0)
    used = [r for i, r in enumerate(results) if i not in {left_out} and r.requires_grad]
    losses = [({energy} * torch.randn(r.shape).double()).sum() for r in used]
    grads = torch.autograd.grad(sum(losses), leaves, allow_unused=True, create_graph={second}) if losses else []
    norms = [g.pow(2).sum() for g in grads if g is not None and g.requires_grad]
    second = torch.autograd.grad(sum(norms), leaves, allow_unused=True) if norms else []
    return [*results, *grads, *second, *arguments]


def difference(want, got):
    if isinstance(want, list):
        return want != got
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor) or not want.numel():
        return 0.0 if isinstance(want, type(got)) or isinstance(got, type(want)) else "one is " + str(want)
    return (want - got).abs().max().item() if want.is_floating_point() else not torch.equal(want, got)


compiled = {door}
for sizes, seed in CALLS:
    want = numbers(f, arguments(seed=seed, **sizes))
    got = numbers(compiled, arguments(seed=seed, **sizes))
    print(sizes, "differences of outputs, gradients, arguments:", [difference(a, b) for a, b in zip(want, got)])
print({{k: n for k, n in graphweave.counters().items() if n and "eager" in k}})
'''


_OVER_RANKS = """
from tests.fuzz.case import Argument, Call, Case
from tests.fuzz.over_ranks import RankJudge

CASE = {case}

if __name__ == "__main__":
    over_ranks = RankJudge({size})
    print(over_ranks(CASE))
    over_ranks.close()
"""


def rank_script(size: int) -> Callable[[Case, Finding, str], str]:
    """As `script`, for cases over the parts of a graph. It runs in the project's folder."""

    def text(case: Case, finding: Finding, origin: str) -> str:
        shown = "".join(f"# {line}\n" for line in over_parts(case.source).splitlines())
        head = f'"""{finding.kind}: {finding.what}\n\nOver {size} ranks. {origin}\n"""\n\n{shown}'
        return head + _OVER_RANKS.format(case=case, size=size)

    return text


def script(case: Case, finding: Finding, origin: str) -> str:
    """The text of the script; `origin` says how the case was found."""
    needed = {a.name for a in case.needed}
    named = {n.id for a in case.arguments for n in ast.walk(ast.parse(a.text)) if isinstance(n, ast.Name)}
    letters = sorted({letter for call in case.calls for letter, _ in call.sizes if letter in named})
    lines = [f'"""{finding.kind}: {finding.what}', "", f"Door: {case.door}. {origin}", '"""', "", HEADER]
    lines += ["import graphweave", "", REGISTERED if "torch.ops.fuzzed" in case.source else "", case.source, ""]
    lines += [f"def arguments(seed, {', '.join(letters)}):", "    torch.manual_seed(seed)"]
    lines += [f"    {a.name} = {a.text}" for a in case.arguments]
    for call in case.calls:
        if call.edit and all(name in {a.name for a in case.arguments} for name in _arguments_in(call.edit)):
            lines += [f"    if seed == {call.seed}:", f"        {call.edit}"]
    if case.mode != "inference":
        lines += [f"    {a.name}.requires_grad_()" for a in case.needed if a.differentiable]
    lines += [f"    return {', '.join(a.name for a in case.needed)}," if needed else "    return ()", "", ""]
    lines += ["CALLS = [", *(f"    {_call(call, letters)}," for call in case.calls), "]"]
    return "\n".join(lines) + _RUN.format(
        context=_CONTEXTS[case.mode], door=_DOORS[case.door], left_out=case.left_out, second=case.second,
        energy="r.double().sin()" if case.second else "r.double()",
    )  # fmt: skip


def _arguments_in(edit: str) -> list[str]:
    return [n.id for n in ast.walk(ast.parse(edit)) if isinstance(n, ast.Name) and n.id != "torch"]


def _call(call: Call, letters: list[str]) -> str:
    return f"({ {letter: size for letter, size in call.sizes if letter in letters} }, {call.seed})"
