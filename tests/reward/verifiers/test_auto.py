"""Verifiers chosen by data source."""

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput, verdict_of


def test_a_row_is_judged_by_the_rules_of_its_data_source() -> None:
    auto = resolve("auto")

    assert verdict_of(auto(VerifierInput(completion="#### 4", answer="4", data_source="openai/gsm8k"))).reward == 1.0
    assert verdict_of(auto(VerifierInput(completion="#### 4", answer="4", data_source="aime2024"))).reward == -1.0


def test_a_row_of_an_unknown_source_is_a_failure_and_not_a_zero() -> None:
    with pytest.raises(
        VerifierError, match="no verifier for data_source 'opena/gsm8k': did you mean 'openai/gsm8k'"
    ) as e:
        resolve("auto")(VerifierInput(completion="#### 4", answer="4", data_source="opena/gsm8k"))

    assert not e.value.retryable
