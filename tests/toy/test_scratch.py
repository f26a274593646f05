"""A model directory made on the spot: whole or absent, loadable, and the same again."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config.sections import Scratch
from asyncrl.errors import ConfigError, DataError, RunFailed
from asyncrl.toy.scratch import make
from asyncrl.toy.step_sums import WORDS
from asyncrl.toy.warm_up import WarmUp

SIZES: dict[str, Any] = {"layers": 1, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "vocab_size": 300}
BRIEF = WarmUp(batch_size=4, rise_steps=1, constant_steps=2, decay_steps=2, mixture_steps=2, num_judged=4, goal=0.0)


def made(where: Path, *, warm_up: WarmUp = BRIEF, said: list[str] | None = None, **settings: Any) -> Path:
    make(
        Scratch(**SIZES | settings),
        where / "model",
        train_path=where / "train.parquet",
        held_out_path=where / "held_out.parquet",
        report=(said if said is not None else []).append,
        warm_up=warm_up,
    )
    return where / "model"


def write_texts(where: Path, **columns: list[Any]) -> None:
    pq.write_table(pa.table(columns), where / "train.parquet")


def test_step_sums_makes_a_model_its_tokenizer_and_its_data(tmp_path: Path) -> None:
    path = made(tmp_path, recipe="step_sums")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert model.config.model_type == "qwen3"
    assert model.config.num_hidden_layers == 1
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer(" a+5=5 #### 12").input_ids) == " a+5=5 #### 12"
    assert len(tokenizer) == model.config.vocab_size == len(WORDS) + 3
    assert pq.read_table(tmp_path / "train.parquet").num_rows == 4096
    assert pq.read_table(tmp_path / "held_out.parquet").num_rows == 256
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", "train.parquet", "held_out.parquet"}


def test_every_prompt_of_the_data_is_known_to_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made(tmp_path, recipe="step_sums"))
    prompts = pq.read_table(tmp_path / "train.parquet")["prompt"].to_pylist()[:200]
    for prompt, ids in zip(prompts, tokenizer(prompts).input_ids, strict=True):
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == prompt


def test_the_same_seed_makes_the_same_weights_and_another_does_not(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> bytes:
        (tmp_path / name).mkdir()
        return (made(tmp_path / name, recipe="step_sums", seed=seed) / "model.safetensors").read_bytes()

    one = weights("one", 1)
    assert one == weights("two", 1)
    assert one != weights("three", 2)


def test_making_leaves_the_random_state_of_the_process_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    made(tmp_path, recipe="step_sums")
    assert torch.equal(torch.get_rng_state(), before)


def test_data_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_text("mine")
    said: list[str] = []
    made(tmp_path, recipe="step_sums", said=said)
    assert (tmp_path / "train.parquet").read_text() == "mine"
    assert any("kept" in line and "train.parquet" in line for line in said)


def test_without_a_held_out_path_no_held_out_file_is_written(tmp_path: Path) -> None:
    scratch = Scratch(**SIZES, recipe="step_sums")
    paths = {"train_path": tmp_path / "t.parquet", "held_out_path": Path()}
    make(scratch, tmp_path / "m", **paths, report=lambda line: None, warm_up=BRIEF)
    assert {entry.name for entry in tmp_path.iterdir()} == {"m", "t.parquet"}


def test_a_lesson_that_fails_leaves_no_model(tmp_path: Path) -> None:
    hopeless = WarmUp(batch_size=4, rise_steps=1, constant_steps=1, decay_steps=1, num_judged=4, max_rounds=1)
    with pytest.raises(RunFailed):
        made(tmp_path, recipe="step_sums", warm_up=hopeless)
    assert {entry.name for entry in tmp_path.iterdir()} == {"train.parquet", "held_out.parquet"}


def test_random_learns_its_tokens_from_all_text_columns(tmp_path: Path) -> None:
    write_texts(tmp_path, prompt=["How many clips?"] * 9, answer=["72"] * 9, solution=["zzzzyyyy zzzzyyyy"] * 9)
    path = made(tmp_path, recipe="random")
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert len(tokenizer("zzzzyyyy").input_ids) < 4
    assert AutoModelForCausalLM.from_pretrained(path).config.vocab_size == len(tokenizer) <= 300
    assert tokenizer.eos_token_id is not None
    assert tokenizer.pad_token_id is not None


def test_random_without_text_is_refused(tmp_path: Path) -> None:
    write_texts(tmp_path, question=["How many?"])
    with pytest.raises(DataError, match="none of the columns prompt, answer, solution"):
        made(tmp_path, recipe="random")


def test_a_directory_in_the_way_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="in the way"):
        made(tmp_path, recipe="step_sums")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"recipe": ""}, "recipe is empty"),
        ({"recipe": "step_sums", "heads": 4, "kv_heads": 3}, "4 heads cannot share 3 kv_heads"),
        ({"recipe": "step_sums", "head_dim": 7}, "head_dim is 7"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        made(tmp_path, **settings)
