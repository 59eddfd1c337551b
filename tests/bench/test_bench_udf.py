"""The benchmark of user-defined functions: layers written in three ways are equal, and failures have short names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.runner import short
from bench.spec_peers import built
from bench.specs import Spec
from bench.steps import ModelStep
from bench.udf_layers import LAYERS
from bench.udf_variants import plain_names
from graphweave.core.settings import override


@pytest.mark.parametrize("layer", LAYERS)
def test_the_ways_of_writing_a_layer_give_the_same_numbers(layer: str) -> None:
    """The test compares how layers are written, weights and self-loops too, as PyTorch's own calls in float64."""
    found = {}
    for writing in ("udf", "builtin", "pyg"):
        one = built(Spec(f"udf-{layer}", "tiny"), Path(), writing, wide=True)
        with override(eager_kernels=False):
            steps = [
                ModelStep(
                    one.model, mode, lambda one=one: one.model(*one.inputs), lambda one=one: one.loss(*one.inputs)
                )()
                for mode in ("infer", "train")
            ]
        grads = {name: grad for name, grad in steps[1].grads.items() if grad is not None}
        found[writing] = ([*steps[0].outputs, *steps[1].outputs], plain_names(grads))
    want, want_grads = found.pop("pyg")
    for got, grads in found.values():
        torch.testing.assert_close(got, want)
        assert grads.keys() == want_grads.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(grad, want_grads[name], msg=name)


def test_a_table_says_why_a_system_gave_no_time() -> None:
    assert short("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory") == "out of memory"
    assert short("killed by signal 9") == "out of memory"
    assert short("exact cannot judge: RuntimeError: can't allocate memory") == "not judged"
    assert short("no answer to 'turn' within 600 s") == "timeout"
    refused = "ScheduleError: Schedule: no kernel can take feature_tile=32: the tile is all of the features. Change it."
    assert short(refused) == "the tile is all of the features"
    assert short("wrong: output[0] is off by 3.1e-01") == "wrong: output[0] is off by 3.1e-01"
