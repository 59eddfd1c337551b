"""An option of `graphweave.compile` is one field: its values, its default, its row in the documents."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

import graphweave
from docs import made
from graphweave.core import choices
from graphweave.core.choices import OPTIONS, Choices, choices_of
from graphweave.core.errors import SettingsError
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class Louder(Choices):
    """The options, and one that a contributor adds."""

    loud: bool = field(
        default=False, metadata=choices._option(choices._SWITCH, "`False`", "every warning twice", "warnings")
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_default_that_it_may_have(name: str) -> None:
    default = next(f.default for f in fields(Choices) if f.name == name)
    assert choices_of({name: default}) == Choices()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fast": True}, r"unknown option 'fast' .* there are verify, recompute, .* Name one of these\."),
        ({"merge": 2}, r"option 'merge' must be True or False \(got 2\)\. Pass one of these\."),
        ({"compact": "no"}, r"option 'compact' must be None, True or False \(got 'no'\)"),
        ({"recompute": "some"}, r"option 'recompute' must be 'auto', 'never', 'sums' or 'always' \(got 'some'\)"),
        ({"relabel": "size"}, r"must be False, 'degree', 'locality' or 'auto' \(got 'size'\)"),
        ({"schedule": 3}, r"must be 'tune', a graphweave\.Schedule, a dict of them, or None \(got 3\)"),
        ({"budget": 0}, r"budget must be a number of seconds above 0 \(got 0\)\. Pass one, such as 60\."),
        ({"budget": True}, r"budget must be a number of seconds above 0 \(got True\)"),
    ],
)
def test_wrong_options_are_refused_with_what_may_be_passed(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        graphweave.compile(len, options=options)


def test_numbers_are_no_switches() -> None:
    with pytest.raises(SettingsError, match="option 'fuse' must be True or False"):
        choices_of({"fuse": 1})


def test_names_that_are_left_out() -> None:
    assert Choices(passes=" -merge, -factor,").left_out == {"merge", "factor"}
    assert Choices().left_out == frozenset()


def test_an_option_is_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contributor's steps: the field, and a pass that reads it."""
    option = choices.option_of(next(f for f in fields(Louder) if f.name == "loud"))
    monkeypatch.setitem(OPTIONS, "loud", option)
    monkeypatch.setattr(choices, "Choices", Louder)
    chosen = choices_of({"loud": True})
    assert isinstance(chosen, Louder) and chosen.loud
    with pytest.raises(SettingsError, match=r"option 'loud' must be True or False \(got 'very'\)"):
        choices_of({"loud": "very"})
    assert "| `loud` | `False` | every warning twice | warnings |" in list(made.switches())

    def reads(program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        assert isinstance(facts.choices, Louder) and facts.choices.loud
        return unchanged(program)

    assert reads(parse("%0: unit[] f32 = input x\nreturn %0\n"), PassFacts(choices=chosen)).steps == ()
