"""An option that is not honoured is not needed with a value that does nothing."""

from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.overrides import (
    at_least_zero,
    derived,
    given,
    is_override,
    missing,
    not_needed,
    parse_override,
    parse_value,
    replaced,
    setting,
)


@pytest.mark.parametrize("value", [None, False, 0, ""])
def test_an_option_that_is_off_is_not_needed_whatever_it_would_do(value: object) -> None:
    assert replaced("x").fate_of(value) == missing("x").fate_of(value) == "not needed"


def test_an_option_that_is_on_has_the_fate_of_its_row() -> None:
    assert replaced("x").fate_of(True) == "substituted"
    assert missing("x").fate_of("file.py") == "not supported"
    assert not_needed("x").fate_of(True) == "not needed"
    assert setting("a.b").fate_of(0) == derived("a.b").fate_of(0) == "mapped"


def test_a_row_names_the_values_that_do_nothing() -> None:
    assert missing("x", harmless=(True,)).fate_of(True) == "not needed"
    assert missing("x", harmless=(True,)).fate_of(False) == "not supported"


def test_minus_one_means_all_or_never() -> None:
    assert [at_least_zero(value) for value in (-1, None, 0, 7)] == [0, 0, 0, 7]


# ── test overrides ────────────────────────────────────────────────────────────────────────────
# Overrides in Hydra's syntax become values.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("10", 10),
        ("-1", -1),
        ("1_000", 1000),
        ("1.", 1.0),
        ("True", True),
        ("false", False),
        ("null", None),
        ("", ""),
        ("token-mean", "token-mean"),
        ("0.6_1.6", "0.6_1.6"),
        ("'left'", "left"),
        ('"10"', "10"),
        (r"'it\'s'", "it's"),
        ("[a,b]", ["a", "b"]),
        ('["console", "wandb"]', ["console", "wandb"]),
        ("'[console,wandb]'", ["console", "wandb"]),
        ("[]", []),
        ("[[1,2],{a: 'b,c'}]", [[1, 2], {"a": "b,c"}]),
        ("{enable_thinking: false}", {"enable_thinking": False}),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_what_hydra_reads(text: str, value: Any) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_sign_before_the_key_is_no_part_of_it(sign: str) -> None:
    override = parse_override(f"{sign}actor.optim.lr=1e-6")
    assert (override.key, override.value) == ("actor.optim.lr", 1e-6)


def test_a_removed_option_has_no_value() -> None:
    assert parse_override("~data.seed").value is None


def test_a_reference_to_another_value_is_open() -> None:
    assert parse_override("trainer.x=${data.y}").is_open
    assert not parse_override("trainer.x=$1").is_open


def test_a_reference_to_a_given_option_is_its_value() -> None:
    found = given([parse_override(text) for text in ("a.b=${c.d}", "c.d=3", "e.f=${oc.env:HOME}", "g.h=${i.j}")])
    assert found["a.b"].value == 3
    assert [key for key, override in found.items() if override.is_open] == ["e.f", "g.h"]


@pytest.mark.parametrize("argument", ["--config-name=x", "plain", "a b=c", ""])
def test_what_is_no_override_is_refused(argument: str) -> None:
    assert not is_override(argument)
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        parse_override(argument)


def test_the_last_of_several_values_counts_and_a_table_is_its_options() -> None:
    found = given([parse_override(text) for text in ("a.b=1", "a.c={d: 2, e: {f: 3}}", "a.b=4")])
    assert {key: override.value for key, override in found.items()} == {"a.c.d": 2, "a.c.e.f": 3, "a.b": 4}
