"""What each folder of DGL's examples needs of `dgl`, and whether `graphweave.dgl` has it.

    python -m docs.dgl_examples /path/to/dgl [--markdown FILE]

`/path/to/dgl` is a checkout of DGL's public repository. The scripts are read, not run: every name that a script imports
from `dgl`, or reaches through a module of it, is looked up in `graphweave.dgl`. Methods of graphs are not seen in this
way; DGL's own tests measure those (tests/dgl/upstream.py).
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

_SECTIONS = ("core", "pytorch", "sparse", "multigpu", "graphbolt", "distributed", "advanced")
"""The folders of examples for PyTorch."""

_APART = ("data", "graphbolt", "distributed", "sparse", "multiprocessing", "contrib", "cuda", "nn.mxnet")
"""Parts of DGL that are other products, or stores of downloads: a folder is listed by the part, not by its names."""

_USUAL = {"torch", "numpy", "scipy", "sklearn", "networkx", "tqdm", "pandas", "matplotlib", "psutil"}
"""Packages that most scripts have."""


@dataclass(slots=True)
class Needs:
    """What the scripts of a folder use: names of `dgl`, parts of it that stand apart, and other packages."""

    names: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        return sorted(name for name in self.names if not there(name))


def there(name: str) -> bool:
    """Whether `graphweave.dgl` has `dgl.<name>`."""
    found: object = import_module("graphweave.dgl")
    path = "graphweave.dgl"
    for part in name.split("."):
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                found = import_module(path)
            except ImportError:
                return False
        else:
            found = getattr(found, part)
    return True


def uses(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a script reaches from what it imports: "dgl.nn.GraphConv", "torch.nn"."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                aliases[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
                yield one.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                if one.name != "*":
                    aliases[one.asname or one.name] = f"{node.module}.{one.name}"
                yield node.module if one.name == "*" else f"{node.module}.{one.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _dotted(node)) and path[0] in aliases:
            yield ".".join([aliases[path[0]], *path[1:]])


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        front = _dotted(node.value)
        return [*front, node.attr] if front else []
    return []


def needs_of(scripts: Sequence[Path]) -> Needs:
    found = Needs()
    local = {path.stem for path in scripts} | {path.name for script in scripts for path in script.parent.iterdir()}
    for script in scripts:
        try:
            tree = ast.parse(script.read_text(errors="replace"))
        except SyntaxError:
            found.unread.append(script.name)
            continue
        for name in uses(tree):
            package, _, rest = name.partition(".")
            if package == "dgl" and rest:
                part = next((part for part in _APART if rest == part or rest.startswith(f"{part}.")), None)
                found.parts.update([f"`dgl.{part}`"] if part else [])
                found.names.update([] if part else [rest])
            elif package not in {"dgl", *_USUAL, *sys.stdlib_module_names, *local}:
                found.packages.add(package)
    found.names = _whole(found.names)
    return found


def _whole(names: set[str]) -> set[str]:
    """The names without attributes of functions and classes, as far as `graphweave.dgl` can tell, and without modules
    that stand before a longer name."""
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def folders(dgl: Path) -> Iterator[tuple[str, list[Path]]]:
    for section in _SECTIONS:
        for folder in sorted(p for p in (dgl / "examples" / section).iterdir() if p.is_dir()):
            scripts = sorted(folder.rglob("*.py"))
            if scripts:
                yield f"{section}/{folder.name}", scripts
        loose = sorted((dgl / "examples" / section).glob("*.py"))
        if loose:
            yield section, loose


def markdown(found: dict[str, Needs]) -> str:
    uses_dgl = {name: one for name, one in found.items() if one.names or one.parts}
    whole = [name for name, one in uses_dgl.items() if not one.missing() and not one.parts - {"`dgl.data`"}]
    data = [name for name in whole if uses_dgl[name].parts]
    lines = [
        "# DGL's examples", "",
        "This page lists what each folder of DGL's public `examples/` needs of `dgl`, and what of it `graphweave.dgl`",
        "lacks. `python -m docs.dgl_examples /path/to/dgl --markdown docs/dgl_examples.md` wrote it; it reads the",
        "scripts and does not run them, and methods of graphs are not seen in this way.", "",
        f"{len(uses_dgl)} folders use DGL. {len(whole)} need no name that is missing; {len(data)} of these read their",
        "graphs with `dgl.data`, which downloads them: give them graphs from elsewhere ([data](data.md)). DGL's other",
        "products (`dgl.graphbolt`, `dgl.distributed`, `dgl.sparse`) are not here.", "",
        "| folder | missing names | other parts of DGL | other packages |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, one in uses_dgl.items():
        missing = ", ".join(f"`{m}`" for m in one.missing()) or "none"
        unread = f"; not read: {', '.join(one.unread)}" if one.unread else ""
        lines.append(
            f"| {name} | {missing}{unread} | {', '.join(sorted(one.parts))} | {', '.join(sorted(one.packages))} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dgl", type=Path, help="a checkout of DGL")
    parser.add_argument("--markdown", type=Path, help="write the table to this page")
    args = parser.parse_args()
    text = markdown({name: needs_of(scripts) for name, scripts in folders(args.dgl)})
    if args.markdown:
        args.markdown.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
