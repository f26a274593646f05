"""A tiny random Qwen3 with a word-level tokenizer, and ragged trajectories for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.trainer.ragged_trajectories import VOCAB, ragged_trajectories


@pytest.fixture(autouse=True, scope="session")
def _one_quiet_thread() -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _no_process_group_is_left() -> Iterator[None]:
    """A bfloat16 policy without ranks forms a group of this process alone."""
    was_initialized = dist.is_initialized()
    yield
    if dist.is_initialized() and not was_initialized:
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(VOCAB)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token="w1")


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Callable[..., Path]:
    """Save a model of the given seed and settings; the same again is another copy."""

    def save(seed: int = 0, kind: Any = (Qwen3Config, Qwen3ForCausalLM), **settings: Any) -> Path:
        torch.manual_seed(seed)
        shape: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
            "initializer_range": 0.2,
        }
        path = tmp_path_factory.mktemp("model")
        make_config, make_model = kind
        make_model(make_config(**shape | settings)).save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return save


@pytest.fixture(scope="session")
def model_path(save_model: Callable[..., Path]) -> Path:
    return save_model()


@pytest.fixture(scope="session")
def experts_path(save_model: Callable[..., Path]) -> Path:
    """Directory of a mixture of 5 experts, 2 of them for each token."""
    return save_model(
        kind=(Qwen3MoeConfig, Qwen3MoeForCausalLM), num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12
    )


@pytest.fixture(scope="session")
def even_experts_path(save_model: Callable[..., Path]) -> Path:
    """Directory of a mixture of 6 experts, which 2 and 3 ranks can hold evenly; one of three layers has none."""
    return save_model(
        kind=(Qwen3MoeConfig, Qwen3MoeForCausalLM),
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        mlp_only_layers=[1],
    )


@pytest.fixture
def config() -> Callable[..., Config]:
    """``config(trainer={"lr": 1e-3})``"""

    def build(**sections: dict[str, Any]) -> Config:
        base: dict[str, Any] = {
            "model": {"path": "unused"},
            "data": {"train": "unused", "max_prompt_tokens": 16},
            "sampling": {"max_tokens": 20},
            "trainer": {"lr": 1e-3, "grad_clip": 0.0},
        }
        return decode({key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})

    return build


@pytest.fixture
def make_trajectories() -> Callable[..., list[TrainingTrajectory]]:
    return ragged_trajectories
