import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.observe.dashboard.samples.token_texts import BYTES, TokenTexts


def tokenizer(path: Path, vocabulary: Any, **rest: Any) -> TokenTexts:
    path.write_text(json.dumps({"model": {"vocab": vocabulary}, **rest}))
    return TokenTexts.read(path)


def test_every_byte_has_a_character() -> None:
    assert sorted(BYTES.values()) == list(range(256))
    assert (BYTES["Ġ"], BYTES["Ċ"], BYTES["a"]) == (ord(" "), ord("\n"), ord("a"))


def test_byte_level_pieces_become_text_and_a_split_character_is_at_its_last_token(tmp_path: Path) -> None:
    vocabulary = {"Ġcaf": 0, "Ã": 1, "©": 2, "Ċ": 3}
    added = [{"id": 4, "content": "<|end|>"}]
    texts = tokenizer(tmp_path / "t.json", vocabulary, decoder={"type": "ByteLevel"}, added_tokens=added)
    assert texts.of([0, 1, 2, 3, 4]) == [" caf", "", "é", "\n", "<|end|>"]
    assert texts.of([1]) == ["\ufffd"]
    assert texts.of([1, 4]) == ["", "\ufffd<|end|>"]
    assert texts.of([0, 99]) == [" caf", "⟨99⟩"]


def test_metaspace_pieces_become_text(tmp_path: Path) -> None:
    texts = tokenizer(tmp_path / "t.json", [["▁cafe", -1.0], ["<0x0A>", -2.0], ["s", -3.0]])
    assert texts.of([0, 2, 1]) == [" cafe", "s", "\n"]


def test_words_stay_as_they_are(tmp_path: Path) -> None:
    assert tokenizer(tmp_path / "t.json", {"ab": 0, " c": 1}).of([0, 1, 7]) == ["ab", " c", "⟨7⟩"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": {}}', '{"model": {"vocab": {"a": "x"}}}', '{"model": {"vocab": [[]]}}']
)
def test_a_file_that_is_no_tokenizer_gives_no_texts(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    texts = TokenTexts.read(tmp_path / "tokenizer.json")
    assert not texts
    assert texts.of([1]) == ["⟨1⟩"]


def test_the_tokenizer_of_the_newest_checkpoint_stands_in_for_a_model_that_is_gone(tmp_path: Path) -> None:
    for step, word in ((10, "old"), (20, "new")):
        folder = tmp_path / f"step_{step:06d}"
        folder.mkdir()
        tokenizer(folder / "tokenizer.json", {word: 0})
    assert TokenTexts.of_run("/nowhere", tmp_path).of([0]) == ["new"]
    assert not TokenTexts.of_run(None, tmp_path / "none")
