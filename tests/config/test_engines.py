"""Every entry of the catalogue of engines names what exists."""

import pytest
from msgspec.structs import fields

from asyncrl.config.engines import ANY_DEVICE, ENGINES, EngineEntry, engine_entry, imported
from asyncrl.config.meanings import meanings
from asyncrl.config.sections.rollout import Rollout
from asyncrl.errors import ConfigError

PATHS = ("load", "describe", "check_model", "check_architecture", "memory")


@pytest.mark.parametrize("name", ENGINES)
def test_the_functions_of_an_entry_exist_without_the_engine_being_installed(name: str) -> None:
    assert all(callable(imported(path)) for key in PATHS if (path := getattr(ENGINES[name], key)))


@pytest.mark.parametrize("name", ENGINES)
def test_the_keys_of_an_entry_are_settings_of_its_section(name: str) -> None:
    entry, rollout = ENGINES[name], Rollout()
    for key in (entry.num_devices, entry.memory_fraction, entry.max_tokens):
        assert not key or isinstance(rollout.own(key), int | float)
        assert key.startswith(entry.section)
    assert not entry.section or fields(getattr(rollout, entry.section))


@pytest.mark.parametrize("entry", ENGINES.values(), ids=ENGINES)
def test_an_engine_that_does_not_record_on_every_device_says_what_it_needs(entry: EngineEntry) -> None:
    assert bool(entry.records_with) == (entry.records_on != ANY_DEVICE)


def test_an_unknown_engine_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"^rollout.engine is 'vlm': did you mean 'vllm'\? \(or path/to/file.py:name"):
        engine_entry("vlm")


def test_the_reference_names_every_engine() -> None:
    assert meanings()["rollout.engine"].kind == '"transformers" or "vllm" or "file.py:name"'
