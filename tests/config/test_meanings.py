"""Types and values are told in words, as one writes them in TOML, and every setting has its meaning."""

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from asyncrl.config.meanings import meaning_of, meanings, section_meanings, type_in_words, value_in_words
from asyncrl.config.sections.schedule import Schedule


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Meta(ge=1)], "integer ≥ 1"),
        (Annotated[float, Meta(ge=0, lt=1)], "number ≥ 0, < 1"),
        (Annotated[int, Meta(ge=0, le=2**63 - 1)], "integer ≥ 0, ≤ 2^63 - 1"),
        (Annotated[Annotated[float, Meta(ge=0)] | Literal["auto"], Meta(extra={})], 'number ≥ 0 or "auto"'),
        (Literal["a", "b"] | None, '"a" or "b" or unset'),
        (str | list[str], "string or list of string"),
        (dict[str, bool | Any], "table of true or false or any value"),
    ],
)
def test_a_type_is_told_with_its_bounds(kind: Any, words: str) -> None:
    assert type_in_words(kind) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "unset"), (True, "true"), ("a", '"a"'), ([], "[]"), ({}, "{}"), ({"a": [1.5]}, "{ a = [1.5] }")],
)
def test_a_value_is_told_as_it_is_written(value: Any, words: str) -> None:
    assert value_in_words(value) == words


def test_every_setting_is_documented() -> None:
    assert [key for key, meaning in meanings().items() if not meaning.text] == []


def test_defaults_are_those_of_the_sections() -> None:
    found = meanings()
    assert found["schedule.staleness"].default == Schedule().staleness
    assert found["model.path"].is_required
    assert found["data.ratios"].default == []
    assert not found["data.ratios"].is_required
    assert next(iter(found)) == "run.name"


def test_a_setting_has_its_type_in_words_and_verls_name() -> None:
    found = meanings()
    staleness = found["schedule.staleness"]
    assert (staleness.kind, staleness.is_live, staleness.section) == ('number ≥ 0 or "auto"', True, "schedule")
    assert (found["schedule.group_size"].verl, found["data.ratios"].verl) == ("rollout.n", "")
    assert '"grpo" or "dr_grpo"' in found["algorithm.advantage"].kind


def test_a_list_of_tables_has_the_settings_of_its_items() -> None:
    parts = meanings()["reward.parts"].items
    assert {"reward.parts.name", "reward.parts.weight"} <= {part.key for part in parts}
    assert [part.key for part in parts if not part.text] == []


def test_a_table_of_sections_has_the_settings_of_its_entries() -> None:
    assert {"models.url", "models.key_env"} <= {item.key for item in meanings()["models"].items}
    judged, unknown = meaning_of("models.judge.url"), meaning_of("models.judge.urls")
    assert judged is not None
    assert judged.is_required
    assert unknown is None
    assert meaning_of("trainer.lr") is meanings()["trainer.lr"]


def test_every_section_is_documented() -> None:
    found = section_meanings()
    assert {meaning.section for meaning in meanings().values()} <= set(found)
    assert all(found.values())
