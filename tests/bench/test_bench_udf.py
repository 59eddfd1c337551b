"""The benchmark of user-defined functions: layers written in three ways are equal, and failures have short names."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from bench.udf import _ratios, short
from bench.udf_layers import LAYERS, joined
from bench.udf_variants import plain_names
from bench.udf_worker import Work
from graphweave.core.settings import override


@pytest.mark.parametrize("layer", LAYERS)
def test_the_ways_of_writing_a_layer_give_the_same_numbers(layer: str) -> None:
    """The test compares how layers are written, weights and self-loops too, as PyTorch's own calls in float64."""
    outputs = {}
    for writing in ("udf", "builtin", "pyg"):
        options = argparse.Namespace(system=writing, layer=layer, graph="tiny", data_dir=Path(), wide=True)
        work = Work(options)
        with override(eager_kernels=False):
            loss = work.model.loss(*work.inputs)
            loss.backward()
            out = joined(work.model(*work.inputs))
        grads = plain_names({name: p.grad for name, p in work.model.named_parameters() if p.grad is not None})
        outputs[writing] = (out, loss, grads)
    want, want_loss, want_grads = outputs.pop("pyg")
    for got, loss, grads in outputs.values():
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(loss, want_loss)
        assert grads.keys() == want_grads.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(grad, want_grads[name], msg=name)


def test_ratios_to_slow_systems_are_of_their_own_rounds() -> None:
    timed = {"udf": {"median": 2.0}, "builtin": {"median": 4.0}, "pyg": {"status": "timeout"}}
    slow = {"udf": {"median": 3.0}, "dgl-udf": {"median": 600.0}}
    assert _ratios("infer", timed, slow) == {"dgl-udf / udf": 200.0, "udf / builtin": 0.5}


def test_a_table_says_why_a_system_gave_no_time() -> None:
    assert short("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory") == "out of memory"
    assert short("killed by signal 9") == "out of memory"
    assert short("no answer to 'turn' within 600 s") == "timeout"
    assert short("wrong: output[0] is off by 3.1e-01") == "wrong: output[0] is off by 3.1e-01"
