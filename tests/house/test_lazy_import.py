"""`import graphweave` loads neither PyTorch nor the compiler; names load what defines them when they are asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import graphweave
from tests import fresh_process
from tests.house.test_public_api import PUBLIC


def loaded(statement: str) -> set[str]:
    """The modules that are loaded after a statement in a process that has PyTorch, and what the statement prints."""
    return set(fresh_process.checked(f"{statement}\nimport sys\nprint(*sys.modules)").split())


@pytest.mark.parametrize("module", ["graphweave", "graphweave.dgl"])
def test_a_package_is_loaded_without_the_compiler(module: str) -> None:
    text = f"import {module}, sys\nprint(*sys.modules)"  # in a process without PyTorch
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"torch", "numpy", "sympy", "scipy", "torch_geometric"})


COMPILERS = {
    "torch._dynamo", "sympy", "networkx", "triton", "graphweave.compiler.road", "graphweave.frontends.halves.handover",
}  # fmt: skip
OPTIONAL = {"jax", "matplotlib", "pandas", "rich", "scipy", "sklearn", "torch_geometric", "torch_scatter"}
MODEL = "import graphweave, torch\ncompiled = graphweave.compile(torch.nn.Linear(2, 2))\n"


def test_the_compilers_are_loaded_at_the_first_call() -> None:
    """They take 1.5 s, and a worker of a DataLoader that gets a compiled module calls it never."""
    assert loaded(MODEL).isdisjoint(COMPILERS | OPTIONAL)
    text = MODEL + "import pickle\npickle.loads(pickle.dumps(compiled))"
    assert loaded(text).isdisjoint(COMPILERS | OPTIONAL)


def test_a_first_call_loads_nothing_that_few_programs_need() -> None:
    """PyTorch's compiler loads networkx, SymPy and, where it is installed, Triton."""
    found = loaded(MODEL + "compiled(torch.ones(1, 2))")
    assert COMPILERS - {"triton"} <= found and found.isdisjoint(OPTIONAL)
    assert not any(module.startswith(("graphweave.jax", "graphweave.dgl", "graphweave.nn")) for module in found)


def test_options_are_checked_before_the_first_call() -> None:
    text = "import graphweave, torch\ntry: graphweave.compile(torch.relu, options={'fuze': True})\n" + (
        "except graphweave.core.errors.SettingsError: print('refused')"
    )
    assert "refused" in loaded(text)


def test_the_compiler_is_loaded_while_the_garbage_collector_rests() -> None:
    """It would look at all of PyTorch's modules again and again, which is a quarter of the time of loading."""
    text = "import gc, graphweave, torch\nbefore = gc.get_stats()[2]['collections'], gc.get_threshold()\n" + (
        "graphweave.explain\nprint((gc.get_stats()[2]['collections'], gc.get_threshold()) == before)"
    )
    assert loaded(text) >= {"True", "torch._dynamo"}


def test_a_compiled_function_within_another_is_traced_before_anything_is_loaded() -> None:
    text = "import torch, graphweave\ninner = graphweave.compile(lambda x: x.relu() + 1)\n" + (
        "outer = torch.compile(lambda x: inner(x) * 2, backend='eager', fullgraph=True)\n"
        "print(outer(torch.ones(3)).tolist() == [4.0, 4.0, 4.0], 'graphweave.frontends.dynamo.captured' in sys.modules)"
    )
    assert loaded("import sys\n" + text) >= {"True", "False"}


def test_what_checks_types_and_what_is_loaded_are_the_same() -> None:
    """The imports that only type checkers see name what `_FROM` names."""
    tree = ast.parse(Path(graphweave.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    seen = {(n.module, a.name) for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    said = {(f"graphweave.{module}", name) for module, names in graphweave._FROM.items() for name in names}
    assert seen == said | {("graphweave", name) for name in graphweave._PACKAGES}
    assert {name for _, name in seen} | {"__version__"} >= set(graphweave.__all__)


def test_every_name_is_found_and_others_are_not() -> None:
    for name in graphweave.__all__:
        assert getattr(graphweave, name) is getattr(graphweave, name)
    assert set(graphweave.__all__) <= set(dir(graphweave))
    with pytest.raises(AttributeError, match="module 'graphweave' has no attribute 'grph'"):
        graphweave.grph  # noqa: B018


def test_the_function_graph_is_not_hidden_by_the_package_of_its_name() -> None:
    text = "import graphweave.graph.batch\nimport graphweave\nprint(graphweave.graph(([0], [1])).num_nodes())"
    assert fresh_process.checked(text) == "2\n"


def test_packages_are_attributes_without_an_import_of_their_own() -> None:
    names = [name for name in graphweave._PACKAGES if name != "jax"]
    text = f"import graphweave as gw\nprint(*(getattr(gw, name).__name__ for name in {names}))"
    assert fresh_process.checked(text).split() == [f"graphweave.{name}" for name in names]
    assert {*graphweave._PACKAGES} <= {*dir(graphweave)}


@pytest.mark.slow
@pytest.mark.parametrize("name", graphweave._PACKAGES)
def test_each_package_is_an_attribute_where_no_other_is_loaded(name: str) -> None:
    text = f"import graphweave as gw\nprint(gw.{name}.__name__)"
    assert fresh_process.checked(text) == f"graphweave.{name}\n"


def test_the_package_that_changes_pyg_is_imported_by_its_name() -> None:
    text = "import graphweave as gw\nprint('pyg' in dir(gw), hasattr(gw, 'pyg'))\ngw.pyg"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n" and "has to be imported by its name" in done.stderr


def test_every_package_with_public_names_is_an_attribute() -> None:
    public = {module.split(".")[1] for module in PUBLIC if "." in module} - {"graph"}
    assert public <= {*graphweave._PACKAGES}
