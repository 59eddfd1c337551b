"""Imports between rooms point one way (docs/design.md, "Rooms"), and stand at the top of the file."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from graphweave.core.settings import ROOMS

PACKAGE = Path(__file__).parents[2] / "graphweave"
FILES = sorted(PACKAGE.rglob("*.py"))

_FACTS = {"core", "ir", "analysis"}
_STAGES = _FACTS | {"passes", "lower", "codegen"}
_CAPTURED = {"frontends.calls", "frontends.spellings", "frontends.importing"}
_MODEL_SIDE = {"core", "graph", "udf", "function"}

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "ir": {"core"},
    "analysis": {"core", "ir"},
    "passes": _FACTS,
    "lower": _FACTS | {"passes"},
    "codegen": {"core", "ir.loop"},
    "compiler": _STAGES | {"frontends.spellings"},  # only makes plans: its results are texts and choices, never tensors
    "runtime": {"core"},
    "execute": _STAGES | {"compiler", "runtime"},  # runs plans: its steps run at every call
    "tuning": _STAGES | {"compiler", "runtime", "execute"},  # measures candidates, whoever captured the graph
    "frontends.calls": {"core", "ir"},
    "frontends.sparse": {"core"},
    "frontends.spellings": {"core", "frontends.calls"},
    "frontends.tracing": {"core", "compiler", "runtime", "frontends.sparse"},
    "frontends.importing": _FACTS | {"compiler"} | {"frontends.calls", "frontends.spellings"},
    "frontends.halves": _FACTS | {"passes", "compiler", "runtime", "execute"} | _CAPTURED | {"frontends.tracing"},
    "frontends.captures": {"core"},
    "frontends.stored": {"core", "compiler", "execute", "runtime", "frontends.calls", "frontends.halves"},
    "frontends.dynamo": _STAGES
    | {"compiler", "runtime", "execute", "tuning", "pages"}
    | _CAPTURED
    | {"frontends.tracing", "frontends.sparse", "frontends.halves", "frontends.captures", "frontends.stored"},
    "extend": _FACTS | {"passes", "compiler", "execute", "frontends.calls", "frontends.importing", "frontends.halves"},
    "tensorlike": {"core"},
    "udf": {"core", "compiler", "frontends.dynamo", "tensorlike"},
    "function": {"udf"},
    "graph": {"core", "runtime", "udf"},
    "ops": {"core", "frontends.dynamo", "frontends.sparse", "graph", "runtime", "udf"},
    "jax": _STAGES | {"compiler", "runtime", "execute"} | {"graph", "tensorlike", "udf"},  # a frontend that also runs
    "loops": {"core", "udf", "graph", "frontends.dynamo", "tensorlike"},
    "nn": _MODEL_SIDE | {"ops"},
    "sampling": {"core", "graph", "runtime"},
    "pyg": {"core", "frontends.sparse", "ops", "points", "sampling"},
    "points": {"core", "runtime"},
    "md": {"core", "exporting", "nn", "points", ""},
    "data": {"core", "graph", "points"},
    "distributed": {
        "core",
        "data",
        "frontends.dynamo",
        "frontends.halves",
        "graph",
        "runtime",
        "sampling",
    },  # reads graphs' files, partitions as clusters do
    "dgl": _MODEL_SIDE | {"data", "ops", "nn", "sampling"},
    "certificate": {"core", "ir", "compiler", "runtime", "pages"}
    | {"frontends.dynamo", "frontends.halves", "frontends.tracing"},  # runs compiled programs beside eager mode
    "exporting": {"core", "ir", "analysis", "lower", "compiler", "runtime", "execute"}
    | {"frontends.dynamo", "frontends.tracing"},  # a frontend of its own end: programs that no Python runs
    "": _MODEL_SIDE
    | {"certificate", "data", "dgl", "distributed", "exporting", "extend", "frontends.dynamo", "jax", "loops", "nn"}
    | {"ops", "points", "sampling"},  # loads each of them when it is first asked for
    "pages": {"core"},
    "examples": {"core", "data", "distributed", "graph", "nn", "points", "sampling", ""},
    "cli": {"codegen", "compiler", "core", "data", "distributed", "examples", "frontends.dynamo", "ir", "pages"}
    | {"runtime", ""},
}
"""Room -> rooms it may import besides itself. "" is the package itself, `graphweave/__init__.py`. The room
`extend` builds kernels, since a declared operator is tried at once."""

INSIDE_FUNCTIONS: dict[str, str] = {
    "examples/convolutions.py": "PyG is optional and takes seconds to load",
    "cli/parts.py": "the compiler takes seconds to load",
    "examples/pairs.py": "SciPy takes long to load",
    "cli/plot.py": "matplotlib is optional",
    "data/networks.py": "networkx is optional",
    "data/pyg.py": "PyG is optional and takes seconds to load",
    "data/dgl.py": "pandas and PyYAML are optional",
    "data/tables/door.py": "pandas is optional and takes long to load",
    "data/tables/graph.py": "PyG is optional and takes seconds to load",
    "data/tables/source.py": "SQLAlchemy and pyarrow are optional",
    "data/planetoid.py": "PyG is optional and takes seconds to load",
    "frontends/dynamo/compile.py": "the compilers take seconds to load, and check options",
    "frontends/dynamo/loaded_later.py": "the compilers take seconds to load",
    "frontends/tracing/library_formulas.py": "PyG is optional and takes seconds to load",
    "frontends/tracing/edge_pooling.py": "PyG is optional and takes seconds to load",
    "frontends/tracing/pyg_formulas.py": "PyG is optional and takes seconds to load",
    "frontends/tracing/relation_formulas.py": "PyG is optional and takes seconds to load",
    "frontends/sparse/sparse_formulas.py": "PyG is optional and takes seconds to load",
    "graph/convert_to.py": "PyG, networkx and dgl are optional, PyG and SciPy take long to load",
    "core/locality.py": "SciPy takes long to load",
    "frontends/sparse/sparse_products.py": "SciPy takes long to load",
    "frontends/sparse/torch_sparse_matrix.py": "SciPy takes long to load",
    "sampling/partition.py": "pymetis is optional",
    "dgl/distances.py": "SciPy takes long to load",
    "dgl/from_others.py": "networkx is optional",
    "dgl/matrices.py": "networkx is optional, SciPy takes long to load",
    "dgl/near.py": "SciPy takes long to load",
    "dgl/nn/explain/subgraph_x.py": "SciPy takes long to load",
    "data/small.py": "networkx is optional, scikit-learn takes a second to load",
}
"""Files that may import inside functions, and why."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    at_the_top = {"__init__.py": "", "__main__.py": "cli"}
    inner = ".".join(parts[:2])
    return inner if inner in MAY_IMPORT else at_the_top.get(parts[0], parts[0].removesuffix(".py"))


def rooms_of(module: str) -> set[str]:
    """The room of a module, "ir.loop" for example; all inner rooms of one that is divided, such as "frontends"."""
    found = {room for room in MAY_IMPORT if room and (module == room or module.startswith(f"{room}."))}
    return found or {room for room in MAY_IMPORT if room.startswith(f"{module}.")} or {module}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module within the package: "ir.loop.nodes", or "" for the package itself) of each import of our own."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            # `from graphweave.ir import loop` names the module graphweave.ir.loop.
            inner = [f"{module}.{alias.name}" for alias in node.names]
            modules = [full if _is_module(full) else module for full in inner]
        else:
            continue
        for module in modules:
            if module == "graphweave" or module.startswith("graphweave."):
                found.append((node.lineno, module.removeprefix("graphweave").removeprefix(".")))
    return tuple(found)


@cache
def _is_module(dotted: str) -> bool:
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def allowed(room: str, module: str) -> bool:
    if room in rooms_of(module):
        return True
    return any(module == other or module.startswith(f"{other}.") for other in MAY_IMPORT[room] if other) or (
        module == "" and "" in MAY_IMPORT[room]
    )


# The next three tests name all files that are wrong: a case for each file would make them a fifth of all tests.


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        room = room_of(path)
        if room in MAY_IMPORT:
            modules = [
                f"line {line}: graphweave.{module}" for line, module in imported(path) if not allowed(room, module)
            ]
            wrong += [f"{name_of(path)}: {room or 'the package'} may not import {module}" for module in modules]
        elif path != PACKAGE / "frontends/__init__.py":
            wrong.append(f"{name_of(path)}: {room} is not a room of docs/design.md")
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top() -> None:
    wrong = []
    for path in FILES:
        inside = {
            node.lineno
            for function in ast.walk(parsed(path))
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
        if bool(inside) != (name_of(path) in INSIDE_FUNCTIONS):
            wrong.append(f"{name_of(path)}: imports inside functions at lines {sorted(inside)}")
    assert not wrong, "move them to the top, or take a file that has none off the list:\n" + "\n".join(wrong)


def test_the_rooms_are_those_that_can_be_logged() -> None:
    assert {*map(room_of, FILES)} - {"frontends"} == set(MAY_IMPORT)
    assert {room.split(".")[0] for room in MAY_IMPORT} == {*ROOMS, ""}


def test_no_two_classes_have_one_name() -> None:
    classes = [n.name for p in FILES for n in ast.walk(parsed(p)) if isinstance(n, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_a_file_name_stands_in_three_rooms_at_most() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        if path.name != "__init__.py":
            rooms[path.name].add(room_of(path))
    assert {name: found for name, found in rooms.items() if len(found) > 3} == {}


def test_the_table_has_no_circle() -> None:
    """Removing rooms that import nothing left, again and again, removes them all."""
    left = {room: set().union(*map(rooms_of, others)) - {room} for room, others in MAY_IMPORT.items()}
    while left:
        free = {room for room, others in left.items() if not others & left.keys()}
        assert free, f"circle among {sorted(left)}"
        left = {room: others for room, others in left.items() if room not in free}


def test_files_import_each_other_in_no_circle() -> None:
    """Imports inside functions and imports for type checkers are counted, too."""
    left: dict[str, set[str]] = {}
    for path in FILES:
        own = name_of(path).removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")
        left[own] = {module for _, module in imported(path)} - {own}
    while left:
        free = {module for module, others in left.items() if not others & left.keys()}
        assert free, f"circle among {sorted(left)}"
        left = {module: others for module, others in left.items() if module not in free}


@pytest.mark.parametrize(
    ("room", "module", "fine"),
    [
        ("core", "ir.loop.nodes", False),
        ("codegen", "ir.loop.nodes", True),
        ("codegen", "ir.message.nodes", False),
        ("codegen", "ir", False),
        ("runtime", "codegen.cpp", False),
        ("data", "", False),
        ("cli", "", True),
        ("compiler", "frontends.dynamo", False),
        ("compiler", "execute.build", False),
        ("execute", "compiler.plan", True),
        ("frontends.dynamo", "compiler.road", True),
        ("compiler", "frontends.spellings.masks", True),
        ("compiler", "frontends.importing.importer", False),
        ("frontends.calls", "frontends.importing.importer", False),
        ("frontends.importing", "frontends.calls.declared", True),
        ("udf", "frontends.halves", False),
    ],
)
def test_the_check_tells_right_from_wrong(room: str, module: str, fine: bool) -> None:
    assert allowed(room, module) is fine


_PRIVATE = re.compile(r"\b(?:g|graph|block|made|first|other)\._(?!formats\b|created\b)[a-z]\w*")
"""A private attribute of something that is called as graphs are. `DGLGraph` itself has `_formats` and `_created`."""


@pytest.mark.parametrize(
    "room", ["dgl", "loops", "ops", "sampling", "udf", "nn", "data", "distributed", "cli", "jax", "examples"]
)
def test_only_the_room_of_graphs_reads_what_is_private_to_them(room: str) -> None:
    """Others use `relations`, `node_frames`, `edge_frames` and the functions of `graph/transform.py`."""
    found = [
        f"{name_of(path)}: {text}"
        for path in FILES
        if room_of(path).partition(".")[0] == room
        for text in _PRIVATE.findall(path.read_text())
        if text not in ("graph._indices", "graph._values")  # of sparse tensors
    ]
    assert found == []


def test_tests_stand_in_the_folder_of_a_room() -> None:
    folders = {"bench", "docs", "house", *(room.replace(".", "/") for room in MAY_IMPORT)}
    tests = PACKAGE.parent / "tests"
    stray = [str(path) for path in tests.rglob("test_*.py") if str(path.parent.relative_to(tests)) not in folders]
    assert stray == []


def test_files_stay_short() -> None:
    assert [name_of(path) for path in FILES if len(path.read_text().splitlines()) > 500] == []


_NAMES_OF_NODES = re.compile(r"^from graphweave\.ir\.(message|loop|tape)\.nodes import (\([^)]*\)|.*)", re.MULTILINE)


def test_nodes_are_read_from_their_module() -> None:
    """A file that needs more than three names of an IR imports the module (`ir.Push`), so that a reader sees which IR
    a node is of. `extend/algebra.py` hands the names on."""
    for path in FILES:
        text, name = path.read_text(), name_of(path)
        if name.startswith("ir/") or name == "extend/algebra.py":
            continue
        for level, names in _NAMES_OF_NODES.findall(text):
            assert f"from graphweave.ir.{level} import nodes as" not in text, f"{name} imports nodes in two ways"
            assert len(names.split(",")) <= 3, f"{name} imports many nodes by name"
