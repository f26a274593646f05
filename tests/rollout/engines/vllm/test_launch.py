"""Errors of vLLM's own argument check become sentences. No engine is started."""

import pytest

pytest.importorskip("vllm")

from pydantic import BaseModel, ValidationError, field_validator

from asyncrl.rollout.engines.vllm import launch


class Arguments(BaseModel):
    max_model_len: int

    @field_validator("max_model_len")
    @classmethod
    def _check(cls, value: int) -> int:
        raise ValueError("max_model_len is too long")


def test_the_reason_of_a_validation_error_is_its_message_alone() -> None:
    with pytest.raises(ValidationError) as refused:
        Arguments(max_model_len=3)

    assert launch._reason(refused.value) == "max_model_len is too long"


def test_the_reason_of_any_other_error_is_its_message() -> None:
    assert launch._reason(OSError("no such file")) == "no such file"
