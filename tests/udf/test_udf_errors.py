"""Wrong functions raise errors that show the name, the shape and the sizes: plain, and where calls are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import graphweave
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from graphweave.udf.arguments import Frames
from graphweave.udf.run import apply_edges, apply_nodes, update_all
from tests.programs.graphs import zoo
from tests.udf.udf_support import Case, assert_same, case_of, in_buckets, on_sum, sends

# the note about a failed trace, in addition to the error
pytestmark = [
    pytest.mark.filterwarnings("ignore:graphweave.*could not trace"),
]
Function = Callable[[Any], Any]
EDGES = next(e for e in zoo() if e.name == "unsorted")


@pytest.fixture(params=[True, False], ids=["kernels", "plain"])
def case(request: pytest.FixtureRequest, fresh_compiler: None) -> Iterator[Case]:
    with override(eager_kernels=request.param):
        yield case_of(EDGES, (3,))


def run(case: Case, message: Function = sends, reduce: Function = on_sum) -> dict[str, torch.Tensor]:
    return update_all(case.ends, case.frames, message, reduce)


def refuses(error: type[Exception], text: str, case: Case, **functions: Function) -> None:
    """`text` is a pattern of the message; afterwards, right functions run as ever."""
    with pytest.raises(error, match=text) as caught:
        run(case, **functions)
    assert "torch._dynamo" not in str(caught.value)
    assert_same(run(case), in_buckets(case, on_sum), case.leaves, 64)


def test_missing_field(case: Case) -> None:
    refuses(KeyError, r"edges.src\['y'\]: no such field. Fields that exist: 'x'", case, message=_missing_source)
    refuses(KeyError, r"edges.dst\['x'\].*'q', 'z'", case, message=lambda edges: {"m": edges.dst["x"]})
    refuses(KeyError, r"nodes.data\['x'\].*'q', 'z'", case, reduce=lambda nodes: {"o": nodes.data["x"]})


def _missing_source(edges: Any) -> dict[str, torch.Tensor]:
    return {"m": edges.src["y"]}


def test_missing_message(case: Case) -> None:
    refuses(
        KeyError, r"nodes.mailbox\['k'\].*'m', 'n', 's'", case, reduce=lambda nodes: {"o": nodes.mailbox["k"].sum(1)}
    )


def test_types_without_type_field(case: Case) -> None:
    refuses(KeyError, "_TYPE", case, message=lambda edges: {"m": edges.srctype["w"]})


def test_wrong_number_of_rows(case: Case) -> None:
    text = r"message function returned 'm' of shape \(4,\), but there are 40 edges"
    refuses(DataError, text, case, message=lambda edges: {"m": torch.ones(4)})
    text = r"reduce function returned 'o' of shape \(7, 3\), but there are 10 destination nodes"
    refuses(DataError, text, case, reduce=lambda nodes: {"o": torch.ones(7, 3)})
    refuses(DataError, r"returned 'o' of shape \(\)", case, reduce=lambda nodes: {"o": torch.ones(())})


def test_not_a_dict(case: Case) -> None:
    refuses(DataError, "message function must return a dict of tensors .got Tensor", case, message=lambda e: e.src["x"])
    refuses(DataError, "reduce function must return a dict of tensors .got NoneType", case, reduce=lambda nodes: None)


def test_not_tensors(case: Case) -> None:
    refuses(DataError, "must return tensors .got int for 'm'", case, message=lambda edges: {"m": 1})


def test_unreduced_mailbox(case: Case) -> None:
    text = r"returned 'o' for each message .Mailbox\(rows, messages, 3.*Reduce it along dim 1"
    refuses(DataError, text, case, reduce=lambda nodes: {"o": nodes.mailbox["m"].relu()})


def test_values_of_nodes_without_a_dim_for_messages(case: Case) -> None:
    text = r"shape \(1, 10, 3\) has 10 values along dim 1.*x.unsqueeze\(1\)"
    refuses(DataError, text, case, reduce=lambda nodes: {"o": (nodes.mailbox["m"] * _rows(nodes)).sum(1)})


def _rows(nodes: Any) -> torch.Tensor:
    return nodes.data["q"].unsqueeze(0)


def test_too_many_dims(case: Case) -> None:
    text = r"a tensor of 3 dims meets a mailbox of 2.*m.unsqueeze\(-1\)"
    refuses(DataError, text, case, reduce=lambda nodes: {"o": (nodes.mailbox["s"] + nodes.data["q"][:, None]).sum(1)})


def test_feature_of_wrong_length(case: Case) -> None:
    wrong = torch.ones(5, dtype=torch.float64)
    refuses(
        RuntimeError, r"size of tensor a .3. must match .* b .5.", case, message=lambda e: {"m": e.src["x"] * wrong}
    )
    refuses(RuntimeError, "must match", case, reduce=lambda nodes: {"o": (nodes.mailbox["m"] * wrong).sum(1)})


def test_error_of_the_function_itself(case: Case) -> None:
    def message(edges: Any) -> dict[str, torch.Tensor]:
        raise ValueError("out of cheese")

    refuses(ValueError, "out of cheese", case, message=message)


def test_line_of_the_function_is_in_the_traceback(case: Case) -> None:
    with pytest.raises(RuntimeError) as caught:
        run(case, message=_of_wrong_length)
    assert any(entry.name == "_of_wrong_length" for entry in caught.traceback)


def _of_wrong_length(edges: Any) -> dict[str, torch.Tensor]:
    return {"m": edges.src["x"] * torch.ones(5, dtype=torch.float64)}


def test_apply_functions(case: Case) -> None:
    with pytest.raises(DataError, match=r"'a' of shape \(2,\), but there are 40 edges"):
        apply_edges(case.ends, case.frames, lambda edges: {"a": torch.ones(2)})
    with pytest.raises(DataError, match=r"'a' of shape \(2,\), but there are 10 nodes"):
        apply_nodes(case.ends.dst_rows, case.frames, case.frames.dst, lambda nodes: {"a": torch.ones(2)})


def test_inside_a_compiled_module(fresh_compiler: None) -> None:
    case = case_of(EDGES, (3,))

    class Layer(nn.Module):
        def forward(self, frames: Frames) -> torch.Tensor:
            return update_all(case.ends, frames, lambda edges: {"m": edges.src["y"]}, on_sum)["o"]

    with pytest.raises(KeyError, match=r"edges.src\['y'\]"):
        graphweave.compile(Layer())(case.frames)
