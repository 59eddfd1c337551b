"""Tables and excerpts in the documents, made from the code: `python -m docs.made` writes them between their marks.

A mark is `<!-- made: NAME -->`, or `<!-- made: NAME | FIRST | LAST -->` for the lines of one of the worked example's
texts (`docs/design/example.py`) from the first that begins with FIRST to the next that begins with LAST. What is made
stands between it and `<!-- end -->`. `tests/docs/test_design_book.py` checks that every document is as this writes it.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

from docs import measured, scaling
from docs.design import example
from graphweave.compiler.road import NEEDED, ROAD
from graphweave.core.choices import OPTIONS
from graphweave.core.extras import USES, command
from graphweave.core.operators import Op
from graphweave.core.versions import TESTED
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.simplify import Simplify
from release.versions import COMBINATIONS, read
from tests.house.test_layers import MAY_IMPORT, PACKAGE

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
DECISIONS = ROOT / "docs/design/decisions.md"
_MARK = re.compile(r"(<!-- made: ([^|]*?)(?: \| (.*?) \| (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)
_LANGUAGES = {"layer": "python", "relations": "python", "cpp": "cpp"}

START = {
    "analysis": "facts.py",
    "certificate": "check.py",
    "cli": "train.py",
    "codegen": "cpp/kernel.py",
    "compiler": "road.py",
    "core": "operators.py",
    "data": "npz.py",
    "distributed": "part.py",
    "examples": "training.py",
    "execute": "build.py",
    "exporting": "door.py",
    "extend": "rowwise.py",
    "frontends.calls": "captured_sizes.py",
    "frontends.dynamo": "compile.py",
    "frontends.halves": "handover.py",
    "frontends.importing": "importer.py",
    "frontends.sparse": "sparse_matrix.py",
    "frontends.spellings": "product_rows.py",
    "frontends.captures": "restore.py",
    "frontends.stored": "store.py",
    "frontends.tracing": "capture_settings.py",
    "graph": "graph.py",
    "ir": "message/GRAMMAR.md",
    "jax": "verbs.py",
    "loops": "scope.py",
    "lower": "region.py",
    "md": "calculator.py",
    "nn": "gat_conv.py",
    "ops": "verbs.py",
    "pages": "elements.py",
    "passes": "rewrite.py",
    "points": "near.py",
    "runtime": "launch.py",
    "pyg": "lending.py",
    "sampling": "hops.py",
    "tensorlike": "answers.py",
    "tuning": "search.py",
    "udf": "mailbox.py",
}
"""Room -> the file to read first, where that is not `__init__.py`."""


def rooms() -> Iterator[str]:
    """The rooms of the package, their docstrings, and what they may import (`tests/house/test_layers.py`)."""
    yield from ("| room | what it holds | may import |", "|---|---|---|")
    for room, path in _rooms():
        may = ", ".join(sorted(other or "the package itself" for other in MAY_IMPORT[room])) or "nothing"
        yield f"| `{_shown(path)}` | {_about(path)} | {may} |"


def reading() -> Iterator[str]:
    """The rooms, and the file of each that a reader begins with."""
    yield from ("| room | what it holds | start reading at |", "|---|---|---|")
    for room, path in _rooms():
        first = path / START.get(room, "__init__.py") if path.is_dir() else path
        assert first.is_file(), f"{first} is gone: name another file in START of docs/made.py"
        yield f"| `{_shown(path)}` | {_about(path)} | `{first.relative_to(PACKAGE)}` |"


def _rooms() -> Iterator[tuple[str, Path]]:
    """The rooms that exist, each a folder or a file."""
    for room in filter(None, MAY_IMPORT):
        inner = room.replace(".", "/")
        paths = PACKAGE / inner, PACKAGE / f"{inner}.py"
        yield from ((room, path) for path in paths if path.exists())


def _shown(path: Path) -> str:
    return f"{path.relative_to(PACKAGE)}{'/' * path.is_dir()}"


def _about(path: Path) -> str:
    return _first_line(path / "__init__.py" if path.is_dir() else path)


def markers() -> Iterator[str]:
    """The markers of tests, by `pyproject.toml`."""
    listed = re.search(r"^markers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None, "pyproject.toml has no list of markers"
    yield from ("| marker | tests |", "|---|---|")
    for name, about in re.findall(r'^ *"(\w+): (.*)",$', listed[1], re.MULTILINE):
        yield f"| `{name}` | {about} |"


def triton_tests() -> Iterator[str]:
    """The test files that `make test-triton` runs, by the Makefile."""
    listed = re.search(r"^NUMERICS := .*?\.py,(.*?)\)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None, "the Makefile has no list NUMERICS"
    yield from ("| file | what it tests |", "|---|---|")
    for name in listed[1].replace("\\", " ").split():
        yield f"| `tests/{name}.py` | {_first_line(ROOT / f'tests/{name}.py')} |"


def operators() -> Iterator[str]:
    """The rows of `core/operators.py`."""
    yield from (
        "| operator | operands | types in kernels | cost | derivative | ATen calls |",
        "|---|---|---|---|---|---|",
    )
    for op in Op:
        facts = op.facts
        slopes = ", ".join(f"`{d}`" if d else "none" for d in facts.derivative or ("",))
        calls = ", ".join(f"`{name}`" for name in facts.aten) or f"none: `{facts.formula}`"
        yield f"| `{op.value}` | {facts.arity} | {facts.in_kernels} | {facts.cost} | {slopes} | {calls} |"


def rules() -> Iterator[str]:
    """Every rewrite rule of `passes/rules/`, and whether it is applied always or by cost."""
    yield from ("| rule | before | after | applied |", "|---|---|---|---|")
    found = {rule.name: rule for rule in (*Simplify().rules, *Rewrite().rules)}
    for rule in found.values():
        when = "always" if rule in Simplify().rules else "by cost"
        yield f"| `{rule.name}` | `{rule.before}` | `{rule.after}` | {when} |"


def passes() -> Iterator[str]:
    """The passes of the joint program, in order, each with the first line of its file."""
    for number, one in enumerate(ROAD.joint, 1):
        yield f"{number}. `{one.name}`: {_said_of(one)}"


def passes_by_name() -> Iterator[str]:
    """Every pass once: its name, the stages of `compiler/road.py` in which it runs, and the first line of its file."""
    yield from ("| pass | stage | what it does |", "|---|---|---|")
    found: dict[str, tuple[list[str], str]] = {}
    for row in ROAD.spellings:
        found[row.name] = ["captured graph"], _said_of(row.respell)
    for stage, rows in (("joint program", ROAD.joint), ("each half", ROAD.half), ("prelude", ROAD.prelude)):
        for one in rows:
            found[one.name] = [stage], _said_of(one)
    for name, (stages, said) in found.items():
        needed = f" Needed: {NEEDED[name]}." if name in NEEDED else ""
        yield f"| `{name}` | {', '.join(stages)} | {said}{needed} |"


def _said_of(row: Any) -> str:
    """The first line of the file in which a pass or a function stands."""
    module = row.__module__ if isinstance(row, FunctionType) else type(row).__module__
    return _first_line(ROOT / f"{module.replace('.', '/')}.py").replace("|", "\\|")


def switches() -> Iterator[str]:
    """The options that turn an idea off, by the fields of `core/choices.py`."""
    yield from ("| option | off | what is turned off | what stays |", "|---|---|---|---|")
    for name, option in OPTIONS.items():
        if option.turned_off:
            yield f"| `{name}` | {option.off} | {option.turned_off} | {option.stays} |"


def versions() -> Iterator[str]:
    """The releases of other packages with which this one is tested, by `core/versions.py`."""
    yield from ("| package | oldest | checked by `.ci/run` | tried since |", "|---|---|---|---|")
    for name, of in TESTED.items():
        yield f"| {name} | {of.oldest or 'any'} | {of.checked} | {of.tried or '-'} |"


def extras() -> Iterator[str]:
    """The extras that users choose from, by `core/extras.py`, and what each installs, by `pyproject.toml`."""
    project = (ROOT / "pyproject.toml").read_text()
    yield from ("| command | installs | for |", "|---|---|---|")
    for extra, uses in USES.items():
        listed = re.search(rf"^{extra} = \[(.*?)\]$", project, re.MULTILINE)
        assert listed is not None, f"pyproject.toml has no extra {extra}"
        packages = ", ".join(re.split(r"[>=<;]", part.strip(' "'))[0] for part in listed[1].split(","))
        yield f"| `{command(extra)}` | {packages} | {uses} |"


def tried_versions() -> Iterator[str]:
    """The combinations of releases that `make versions` tries, with results by `release/versions.json`."""
    found = {result.combination: result for result in read()}
    yield from ("| Python | PyTorch | PyG | smoke test | tests | tried on |", "|---|---|---|---|---|---|")
    for of in COMBINATIONS:
        releases = f"| {of.python} | {of.torch} | {of.torch_geometric}"
        if of not in found:
            yield f"{releases} | not tried yet | | |"
            continue
        result = found[of]
        failed = f", {result.failed} fail, {result.why} first" if result.failed else ""
        ended = f"passes | {result.passed} pass{failed}" if result.smoke else f"fails: {result.why} | not run"
        yield f"{releases} | {ended} | {result.date} |"


COMPILING = ("compile", "explain", "check", "counters", "reset_counters", "tune", "Schedule")
"""The names of the package itself that are about compiling; its other functions and classes are about graphs."""


API_OPTIONS = {
    "graphweave.Graph": ("graphweave.Graph", "members: null", "inherited_members: true", 'filters: ["!^_"]'),
    "graphweave.graph": ("graphweave.graph.build.graph", "heading: graphweave.graph", "toc_label: graphweave.graph"),
}
"""Name -> where its docstring stands, and options of its directive. `graphweave.graph` is a package, too."""


def api(module: str, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[str]:
    """A directive for each public name of a module, which the site replaces by its signature and docstring."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"there is no module {module}"
    tree = ast.parse(Path(spec.origin).read_text())  # not imported, since JAX may be absent
    listed = next(node.value for node in tree.body if isinstance(node, ast.Assign) and _sets_all(node))
    for name in sorted(filter(wanted, ast.literal_eval(listed)), key=_place):
        target, *options = API_OPTIONS.get(f"{module}.{name}", (f"{module}.{name}",))
        yield from ("", f"::: {target}", *["    options:"][: len(options)], *(f"      {option}" for option in options))
    yield ""


JAX_LAYERS = {
    "GraphConv (GCN)": "graph_conv.py", "SAGEConv": "sage_conv.py", "GATConv": "gat_conv.py", "GINConv": "gin_conv.py",
    "RelGraphConv (R-GCN)": "rel_graph_conv.py", "HGTConv": "hgt_conv.py", "EdgeConv": "edge_conv.py",
}  # fmt: skip
"""Layers of `graphweave.nn` and their files."""


def jax_layers() -> Iterator[str]:
    """Lines of code by layer. No file of `graphweave.jax` may name a layer, or its lines would have to count."""
    ours = sorted((PACKAGE / "jax").glob("*.py"))
    yield from ("| layer | lines for both | more for PyTorch | more for JAX |", "|---|---|---|---|")
    for name, file in JAX_LAYERS.items():
        here = [path.name for path in ours if re.search(rf"\b{name.split()[0]}\b", _without_words(path))]
        assert not here, f"{here} have code for {name}"
        yield f"| {name} | {_lines_of_code(PACKAGE / 'nn' / file)} | 0 | 0 |"
    table = sum(_lines_of_code(PACKAGE / "jax" / name) for name in ("array_functions.py", "recurrent.py"))
    yield f"| all layers together: `jax/array_functions.py`, `jax/recurrent.py` | | | {table} |"


def _without_words(path: Path) -> str:
    """The code of a file without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_words(s)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _lines_of_code(path: Path) -> int:
    """Lines that are neither empty, nor comments, nor parts of docstrings."""
    text = path.read_text()
    words = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr) and _is_words(node)]
    told = {n for node in words for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    numbered_lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(1 for n, line in numbered_lines if line and not line.startswith("#") and n not in told)


def _is_words(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _place(name: str) -> tuple[int, str]:
    """What is about compiling comes first, in the order in which one needs it; the rest is sorted by name."""
    return (COMPILING.index(name) if name in COMPILING else len(COMPILING), name)


def _sets_all(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def _is_about_graphs(name: str) -> bool:
    return name not in (*COMPILING, "extend", "loops")  # these two have sections of their own


API_MODULES = (
    "graphweave.ops", "graphweave.jax", "graphweave.loops", "graphweave.nn", "graphweave.sampling", "graphweave.points",
    "graphweave.md", "graphweave.distributed", "graphweave.data", "graphweave.extend", "graphweave.extend.algebra",
)  # fmt: skip
"""Modules with a section of `docs/api.md`."""

TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "rooms": rooms,
    "reading": reading,
    "markers": markers,
    "triton tests": triton_tests,
    "operators": operators,
    "rules": rules,
    "passes": passes,
    "passes by name": passes_by_name,
    "switches": switches,
    "versions": versions,
    "extras": extras,
    "tried versions": tried_versions,
    "jax layers": jax_layers,
    "halos": scaling.halos,
    "halves": scaling.halves,
    "scaling": scaling.scaling,
    "published": scaling.published,
    "product models": measured.product_models,
    "large tables": measured.large_tables,
    "varying relations": measured.varying_relations,
    "choices": measured.choices,
    **{f"records {name}": partial(measured.records, *files) for name, files in measured.SECTIONS.items()},
    "api compiling": lambda: api("graphweave", lambda name: name in COMPILING),
    "api graphs": lambda: api("graphweave", _is_about_graphs),
    **{f"api {module}": partial(api, module) for module in API_MODULES},
}


@cache
def _texts() -> dict[str, str]:
    return example.texts()


def excerpt(name: str, first: str | None, last: str | None) -> str:
    """The lines of an example's text from FIRST to LAST, both included, without their common indentation."""
    lines = _texts()[name].strip("\n").splitlines()
    begins = next((i for i, line in enumerate(lines) if line.strip().startswith(first or "")), None)
    assert begins is not None, f"{name} has no line that begins with {first!r}"
    ends = len(lines) - 1
    if last is not None:
        found = [i for i, line in enumerate(lines) if i >= begins and line.strip().startswith(last)]
        assert found, f"{name} has no line that begins with {last!r} behind {first!r}"
        ends = found[0]
    chosen = lines[begins : ends + 1]
    margin = min(len(line) - len(line.lstrip()) for line in chosen if line)
    language = _LANGUAGES.get(name.rpartition(".")[2], "text")
    return "\n".join([f"```{language}", *(line[margin:] for line in chosen), "```"])


def _first_line(path: Path) -> str:
    """The first sentence or line of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n")[0].replace("|", "\\|")


def written(page: str) -> str:
    """The text of a page with all tables and excerpts written again."""

    def fill(match: re.Match[str]) -> str:
        begin, name, first, last, end = match.groups()
        text = "\n".join(TABLES[name]()) if name in TABLES else excerpt(name, first, last)
        return f"{begin}{text}\n{end}"

    return _MARK.sub(fill, page)


def numbered(decisions: str, today: datetime.date) -> str:
    """The page of decisions, where each entry that had no number has the next one, and this date."""
    after = count(1 + max((int(number) for number in re.findall(r"^- D(\d+), ", decisions, re.MULTILINE)), default=0))
    return re.sub(r"^- (?=\*\*)", lambda _: f"- D{next(after)}, {today}:\n  ", decisions, flags=re.MULTILINE)


if __name__ == "__main__":
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = written(before)
        if path == DECISIONS:
            after = numbered(after, datetime.date.today())
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
