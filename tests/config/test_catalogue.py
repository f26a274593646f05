"""Every entry of the catalogue is what the signature of its function says, and can be loaded."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from asyncrl.algo.advantages import resolve_advantage
from asyncrl.algo.aggregate import Totals, resolve_aggregation
from asyncrl.algo.kl import resolve_kl
from asyncrl.algo.losses import resolve_loss
from asyncrl.config.catalogue import (
    ADVANTAGES,
    AGGREGATIONS,
    KL_ESTIMATORS,
    LOSSES,
    SETTINGS,
    CatalogueEntry,
    EstimatorEntry,
    LossEntry,
    aggregation_path,
    estimator_entry,
    kl_path,
    loss_entry,
)
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import ConfigError
from asyncrl.plug_in import REQUIRED


def assert_signature(entry: CatalogueEntry, signature: dict[str, object]) -> None:
    assert entry.reads == signature.keys()
    assert set(entry.required) == {name for name, default in signature.items() if default is REQUIRED}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_entry_of_an_estimator_is_its_signature(name: str) -> None:
    estimator = resolve_advantage(name)
    assert_signature(ADVANTAGES[name], dict(estimator.settings))
    assert estimator.needs == set(ADVANTAGES[name].needs)


@pytest.mark.parametrize("name", LOSSES)
def test_the_entry_of_a_loss_is_its_signature_and_that_of_its_selection(name: str) -> None:
    loss = resolve_loss(name)
    assert_signature(LOSSES[name], {**(loss.select.settings if loss.select else {}), **loss.settings})
    assert LOSSES[name].aggregation in {"", *AGGREGATIONS}


def test_every_aggregation_and_kl_estimator_can_be_loaded() -> None:
    assert all(resolve_aggregation(name)(2, Totals(4, 2)) > 0 for name in AGGREGATIONS)
    assert all(callable(resolve_kl(name)) for name in KL_ESTIMATORS)


def test_every_setting_is_one_of_the_configuration() -> None:
    assert set(Algorithm.__struct_fields__) >= SETTINGS


def test_a_custom_function_has_an_entry_with_all_flags_at_their_defaults() -> None:
    assert estimator_entry("my.py:mine") == EstimatorEntry("my.py:mine")
    assert loss_entry("package.module:mine") == LossEntry("package.module:mine")


@pytest.mark.parametrize(
    ("find", "name", "sentence"),
    [
        (estimator_entry, "grop", "algorithm.advantage is 'grop': did you mean 'grpo'? (or path/to/file.py:name, "),
        (loss_entry, "gsop", "algorithm.loss is 'gsop': did you mean 'gspo'? (or path/to/file.py:name, "),
        (aggregation_path, "token_mean", "algorithm.aggregation is 'token_mean': did you mean 'token-mean'?"),
        (kl_path, "k3++", "algorithm.kl is 'k3+': did you mean 'k3'? (any of them may end in '+')"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(
    find: Callable[[str], object], name: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        find(name)
    assert str(raised.value).startswith(sentence)


def test_the_catalogue_imports_neither_torch_nor_algorithms() -> None:
    code = "import sys, asyncrl.config.run_file; assert not {'torch', 'asyncrl.algo'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
