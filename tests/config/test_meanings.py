from asyncrl.config.meanings import meanings
from asyncrl.config.sections import Schedule


def test_every_setting_is_documented() -> None:
    assert [key for key, meaning in meanings().items() if not meaning.text] == []


def test_defaults_are_those_of_the_sections() -> None:
    found = meanings()
    assert found["schedule.staleness"].default == Schedule().staleness
    assert found["model.path"].is_required
    assert found["data.ratios"].default == []
    assert not found["data.ratios"].is_required
    assert next(iter(found)) == "run.name"
