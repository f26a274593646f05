from asyncrl.config.meanings import meanings, section_meanings
from asyncrl.config.sections.schedule import Schedule


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


def test_every_section_is_documented() -> None:
    found = section_meanings()
    assert {key.rpartition(".")[0] for key in meanings()} <= set(found)
    assert all(found.values())
