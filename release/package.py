"""Builds a wheel and a source archive into `dist/`, and uses the wheel in bare environments: `make package`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from release.built import Built, build
from release.environment import ROOT, Environment, Failed, bare_environment, say

SMOKE = str(Path(__file__).parent / "smoke.py")
DIST = ROOT / "dist"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--torch", default="torch", metavar="ARGUMENTS", help="what pip installs as PyTorch")
    torch = arguments.parse_args().torch.split()
    with bare_environment() as tools:
        tools.install("build", "twine")
        built = build(tools, DIST)
    say(f"built {built.wheel.name} and {built.sdist.name}: alike, complete, nothing besides")
    with bare_environment() as bare:
        bare.install(*torch)
        bare.install(str(built.wheel))
        use_bare(bare)
        use_with_extras(bare, built)


def use_bare(bare: Environment) -> None:
    """Use the package where nothing but its own dependencies is installed, with and without a C++ compiler."""
    smoke(bare, "cpp")
    said = bare.run("-m", "graphweave", "doctor").stdout
    expect("pip install 'graphweave[pyg]'" in said, "doctor names what is not installed", said)
    for command, package in (("train", "rich"), ("bench", "rich"), ("completion", "shtab")):
        said = bare.run("-m", "graphweave", command, status=2).stderr
        expect(package in said and "pip install 'graphweave[" in said, f"{command} says what it needs", said)
    said = bare.run("-c", "import graphweave.data as data; data.digits()", status=1).stderr.splitlines()[-1]
    expect("pip install 'graphweave[train]'" in said, "digits says what it needs", said)
    bare.forget()
    smoke(bare, "eager")
    found = json.loads(bare.run("-m", "graphweave", "doctor", "--json", "-", tools=False, status=1).stdout)
    expect(found["missing"][0]["what"] == "a C++ compiler", "doctor names the missing compiler", found["missing"])
    say("without extras: kernels, and without a compiler eager mode with one warning; what is missing is said")


def use_with_extras(bare: Environment, built: Built) -> None:
    """Use what needs PyG, scikit-learn, rich and shtab."""
    bare.install(f"{built.wheel}[pyg,train,completion]")
    example = bare.folder / "readme.py"
    example.write_text(first_example((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    said = bare.run(str(example)).stdout
    expect("launches" in said and "a step: " in said, "README's example explains itself", said)
    said = bare.run("-m", "graphweave", "train", "--epochs", "2").stdout
    expect("epoch 2/2" in said, "graphweave train trains", said)
    for shell in ("bash", "zsh", "fish"):
        said = bare.run("-m", "graphweave", "completion", shell).stdout
        expect("graphweave" in said and "doctor" in said, f"completion for {shell}", said)
    say("with extras: README's example, training, completion")


def smoke(bare: Environment, expected: str) -> None:
    """Run the smoke test on the installed package, without other programs where no kernel is expected."""
    found = json.loads(bare.run(SMOKE, expected, tools=expected == "cpp").stdout.splitlines()[-1])
    expect(found["folder"].startswith(str(bare.folder)), "the installed package is used", found)


def first_example(readme: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    if found is None:
        raise Failed("expected an example in README.md (got no block of Python)")
    return found[1]


def expect(holds: bool, what: str, found: object) -> None:
    if not holds:
        raise Failed(f"expected that {what} (got {found})")


if __name__ == "__main__":
    main()
