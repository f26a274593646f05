"""Which ids a model has: told by its loaded tokenizer, in whichever of its files tokens stand."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.errors import ConfigError
from asyncrl.messages.token_ids import UNKNOWN, TokenIds, token_ids_of
from asyncrl.weights.contents.token_ids import find_token_ids, load_tokenizer, read_token_ids
from tests.weights.contents.tokenizer_shapes import (
    EOS,
    FILES,
    MORE,
    NUM_ROWS,
    NUM_WORDS,
    OTHER_FILES,
    SHAPES,
    Files,
    make_directory_without_a_tokenizer_json,
    make_model_directory,
)


def found_in(path: Path) -> TokenIds:
    return read_token_ids(AutoModelForCausalLM.from_pretrained(path), path, None)


def sampled(ids: TokenIds) -> set[int]:
    return set(range(ids.vocab_size)) - set(ids.never)


def with_a_text(path: Path, num_rows: int) -> set[int]:
    """Ids of rows that decode to something, each asked for by itself."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return {one for one in range(num_rows) if tokenizer.decode([one], skip_special_tokens=False)}


@pytest.mark.parametrize("name", SHAPES)
def test_an_id_is_sampled_if_it_has_a_text_or_ends_a_completion(tmp_path: Path, name: str) -> None:
    make_model_directory(tmp_path, SHAPES[name])
    ids = found_in(tmp_path)
    assert sampled(ids) == with_a_text(tmp_path, NUM_ROWS) | set(ids.ends)
    assert ids.without_probability(NUM_ROWS) == sorted(set(range(NUM_ROWS)) - sampled(ids))
    assert name == "tokenizer.json alone" or sampled(ids) != set(range(NUM_WORDS))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
def test_whatever_the_files_say_an_id_is_sampled_if_it_has_a_text_or_ends_a_completion(files: Files) -> None:
    with TemporaryDirectory() as folder:
        path = make_model_directory(Path(folder), files)
        ids = found_in(path)
        assert sampled(ids) == with_a_text(path, NUM_ROWS) | set(ids.ends)
        assert EOS in ids.ends


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_a_vocabulary_may_be_in_another_file_than_tokenizer_json(tmp_path: Path, kind: str) -> None:
    pytest.importorskip({"bpe": "transformers"}.get(kind, kind))
    make_directory_without_a_tokenizer_json(tmp_path, kind, num_rows=300)
    ids = found_in(tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    assert set(load_tokenizer(str(tmp_path)).convert_tokens_to_ids([MORE])) < sampled(ids)
    assert with_a_text(tmp_path, 300) <= sampled(ids) <= set(range(300 - 1)), "a byte may be no text by itself"


def test_two_ids_of_one_text_are_two_tokens(tmp_path: Path) -> None:
    twice = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["<eos>", 0.0], ["a", -1.0], ["a", -2.0]]}
    make_model_directory(tmp_path, {"tokenizer.json": {"model": twice}})
    assert sampled(found_in(tmp_path)) == {0, 1, 2, 3}


def test_without_a_tokenizer_every_row_is_an_id(tmp_path: Path) -> None:
    make_model_directory(tmp_path, {})
    (tmp_path / "tokenizer.json").unlink()
    assert found_in(tmp_path) == TokenIds(NUM_ROWS, (), (EOS,))


def test_places_of_pictures_exist_and_are_never_sampled(tmp_path: Path) -> None:
    make_model_directory(tmp_path, {})
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    processor: Any = SimpleNamespace(vision_token_ids=frozenset({4, 13, NUM_ROWS}))
    assert find_token_ids(model, tokenizer, processor) == TokenIds(14, (4, 12, 13), (EOS,))


def test_the_tokenizer_of_another_model_is_one_sentence(tmp_path: Path) -> None:
    make_model_directory(tmp_path, {}, num_rows=NUM_WORDS - 1)
    with pytest.raises(ConfigError) as refused:
        found_in(tmp_path)
    assert str(refused.value) == (
        f"model.path={tmp_path}: the tokenizer has token ids up to 11, but the model knows 0 to 10; use the model's "
        "own tokenizer"
    )


def test_every_source_of_end_tokens_counts_and_a_negative_one_is_none(tmp_path: Path) -> None:
    make_model_directory(tmp_path, {})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.generation_config.eos_token_id, model.config.eos_token_id = [7, 9], [-1, 8]
    assert find_token_ids(model, load_tokenizer(str(tmp_path)), None).ends == (EOS, 7, 8, 9)

    model.generation_config.eos_token_id = [7, NUM_ROWS]
    with pytest.raises(ConfigError, match=rf"generation_config.json names the end token {NUM_ROWS}, but .* 0 to 19"):
        find_token_ids(model, None, None)


def test_a_directory_without_a_tokenizer_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path=.* has no tokenizer: expected tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_damaged_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    make_model_directory(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "unknown"}}')
    with pytest.raises(ConfigError, match=r"^model\.path=.*: its tokenizer cannot be loaded: "):
        load_tokenizer(str(tmp_path))


def test_a_name_on_the_hub_is_told_how_to_download_it() -> None:
    with pytest.raises(ConfigError, match=r"hf download Qwen/Qwen3-0\.6B"):
        load_tokenizer("Qwen/Qwen3-0.6B")


def test_digests_are_equal_if_the_ids_are() -> None:
    ids = TokenIds(20, (3, 5), (1,))
    others = [TokenIds(21, (3, 5), (1,)), TokenIds(20, (3,), (1,)), TokenIds(20, (3, 5), (1, 2))]
    assert ids.digest == TokenIds(20, (3, 5), (1,)).digest
    assert len({ids.digest, *(other.digest for other in others)}) == 4
    assert (ids.num_sampled, UNKNOWN.digest) == (18, "")


@pytest.mark.parametrize("holder", [SimpleNamespace(), SimpleNamespace(token_ids=None), SimpleNamespace(token_ids=7)])
def test_an_engine_need_not_tell_its_ids(holder: object) -> None:
    assert token_ids_of(holder) is UNKNOWN
    assert token_ids_of(SimpleNamespace(token_ids=TokenIds(7))) == TokenIds(7)
