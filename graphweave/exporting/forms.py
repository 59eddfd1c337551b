"""One captured form of a model -> its C++ functions. A model has more than one where it decides by a size.

PyTorch captures a model for the sizes at hand, with conditions on them ("x.size(0) >= 2") where the model, or a layer
in it, decides by a size. A library has a form for each case that a smaller graph leads to, and takes the first one
whose conditions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from graphweave.analysis.typed import call_operands
from graphweave.compiler.compile import compile
from graphweave.compiler.contract import Contract
from graphweave.compiler.plan import Plan
from graphweave.core.errors import ExportError
from graphweave.core.log import logger
from graphweave.core.options import options_for
from graphweave.core.sizes import Size, leaves
from graphweave.execute.executable import Executable
from graphweave.exporting.capture import Argument, WholeModel, capture_whole, without_gradients_of_weights
from graphweave.exporting.conditions import holds, symbols_of
from graphweave.exporting.named_node import is_number
from graphweave.exporting.program import ProgramText, print_program
from graphweave.exporting.seeds import with_seed
from graphweave.exporting.sizes_text import as_cpp
from graphweave.ir.message.nodes import Input, Ref

_log = logger(__name__)

_LEFT_OUT = "-typed-push,-compact"
"""Rules whose results only Python can prepare."""


def capture_forms(
    model: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[WholeModel]:
    """The model captured on the example, and on smaller ones whose sizes no form so far is for: without edges, with one
    row, without any. A smaller one that the model itself refuses is left out, and so are those without a size that the
    model cannot do without, such as the two rows of an index of edges."""
    forms = [capture_whole(model, args, kwargs)]
    given = tuple(args), dict(kwargs)
    symbols = list(symbols_of(forms[0].inputs))
    free = {s for n in (1, 0) for s in symbols if _taken(model, forms, given, {s: n})}
    varied = [s for s in symbols if s in free]
    for n in (1, 0):
        _taken(model, forms, given, dict.fromkeys(varied, n))
    for s in varied:
        _taken(model, forms, given, {**dict.fromkeys(varied, 0), s: 1})
    return with_seed(forms)


def _taken(
    model: Callable[..., object], forms: list[WholeModel], given: tuple[object, object], cut: Mapping[object, int]
) -> bool:
    """Whether there is a form for the example with some of its sizes cut; one that was missing is added."""
    smaller, sizes = _smaller(forms[0], given, cut)
    if any(holds(form, sizes) for form in forms):
        return True
    try:
        with without_gradients_of_weights(model):
            model(*smaller[0], **smaller[1])
        form = capture_whole(model, *smaller)
    except Exception as error:
        _log.info("no form for the sizes %s: %s", sizes, error)
        return False
    if not holds(form, sizes):
        return False
    forms.append(form)
    return True


def _smaller(
    form: WholeModel, given: tuple[object, object], cut: Mapping[object, int]
) -> tuple[tuple[Any, Any], list[tuple[int, ...]]]:
    """The example with the sizes in `cut`, and the sizes of its inputs. Whole numbers in it are 0, so that an index
    names the first row."""
    names = {id(a.example): a for a in form.inputs}

    def small(x: object) -> Any:
        if not isinstance(x, Tensor) or id(x) not in names:
            return x
        for dim, size in enumerate(names[id(x)].sizes):
            if size in cut:
                x = x.narrow(dim, 0, min(cut[size], x.size(dim)))
        return x.detach().clone().requires_grad_(x.requires_grad) if x.is_floating_point() else torch.zeros_like(x)

    return tree_map(small, given), [tuple(small(a.example).shape) for a in form.inputs]


@dataclass(frozen=True, slots=True, eq=False)
class ModelForm:
    """A captured form, and its functions in C++."""

    model: WholeModel
    text: ProgramText


def printed_forms(captured: Sequence[WholeModel], weights: Sequence[Mapping[str, int]]) -> list[ModelForm]:
    """The forms as C++, by the numbers of their weights. Raises ExportError for a call in the first one that cannot
    leave; a form for small graphs that has such a call is left out, so that the library refuses their sizes."""
    forms = [form_of(captured[0], weights[0])]
    for model, numbers in zip(captured[1:], weights[1:], strict=True):
        try:
            forms.append(form_of(model, numbers))
        except ExportError as error:
            _log.info("no form for small graphs: %s", error)
    return forms


def form_of(model: WholeModel, weights: Mapping[str, int]) -> ModelForm:
    """`weights` are the numbers of weights by their placeholders. Raises ExportError for a call that cannot leave."""
    return ModelForm(model, _text(model, executable_of(model), weights))


def executable_of(whole: WholeModel) -> Executable:
    """The plan of a captured inference in which kernels compute all that they can."""
    request = whole.captured.request
    options = replace(options_for("cpp"), standalone=True, equal_runs=False, items=False)
    # Python makes the tables of fused pushes, and sorts pairs
    choices = replace(request.facts.choices, compact=False, unseen_edits=False, passes=_LEFT_OUT)
    facts = replace(request.facts, options=options, choices=choices)
    (half,) = compile(replace(request, facts=facts, promises=())).parts
    return Executable(half.plan(options), Contract(names=half.contract.names))


def constants_of(whole: WholeModel) -> list[Argument]:
    """Tensors that are part of the captured graph."""
    found = []
    for ref, value in whole.captured.request.constants.items():
        node = whole.captured.request.program.nodes[ref]
        if isinstance(value, Tensor) and isinstance(node, Input):
            found.append(Argument(node.name, f"constant.{node.name}", value, tuple(value.shape)))
    return found


def _text(whole: WholeModel, executable: Executable, weights: Mapping[str, int]) -> ProgramText:
    """The program of an executable as C++. Raises ExportError with all calls in it that cannot leave."""
    names, outputs = whole.captured.request.names, [at for _, _, at in whole.results]
    plan, steps = executable.plan, executable.steps
    stored = {
        r: weights[n.name] for r, n in enumerate(plan.program.nodes) if isinstance(n, Input) and n.name in weights
    }
    given = _expressions(whole, plan, weights)
    return print_program(executable.tape, plan, steps.kernels, steps.prelude, given, stored, names, outputs)


def _expressions(whole: WholeModel, plan: Plan, weights: Mapping[str, int]) -> dict[Ref, str]:
    """The C++ expression of each input of a program that is no weight: an input of the model, or a size."""
    inputs = {a.placeholder: f"in[{i}]" for i, a in enumerate(whole.inputs) if a.placeholder}
    symbols: dict[Size, str] = {symbol: f"sizes[{i}]" for i, symbol in enumerate(symbols_of(whole.inputs))}
    found: dict[Ref, str] = {}
    for ref, node in enumerate(plan.program.nodes):
        if not isinstance(node, Input) or node.name in weights:
            continue
        if node.name in inputs:
            found[ref] = inputs[node.name]
        elif is_number(plan.program, ref) and (text := _size_text(whole, plan.program.types[ref], symbols)):
            found[ref] = text
        elif any(ref in call_operands(plan.program, user) for user in range(ref, len(plan.program.nodes))):
            words = whole.captured.request.names.get(node.name, node.name)
            raise ExportError(
                f"{words} is neither a tensor among the inputs nor a size of one, or stands for an effect of a call."
                " Give it as a tensor."
            )
    return found


def _size_text(whole: WholeModel, t: Any, symbols: Mapping[Size, str]) -> str:
    """A number among the captured graph's inputs that follows from the sizes of tensors, as C++; "" for others."""
    size = whole.known_as.get(t.size, t.size)
    return as_cpp(size, symbols) if set(leaves(size, symbols)) <= symbols.keys() else ""
