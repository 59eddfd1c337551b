"""The page on operators on edges: its snippets run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "ops.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_the_snippets_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    snippets = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/ops.md", "exec"), names)
    said = capsys.readouterr().out
    assert len(snippets) == 9
    assert said.startswith("message mixes rows")
    assert 'extern "C"' in said
    assert names["lin"].weight.grad is not None
