import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.errors import LedgerError
from asyncrl.tools.dashboard import sample_view
from asyncrl.tools.dashboard.query import RefusedAnswer
from asyncrl.tools.dashboard.sample_view import BYTES, TokenTexts, excerpts, group, picture, sample_file
from tests.tools.dashboard.browser_free import a_picture, a_sample, an_episode, write

TEXTS = TokenTexts({3: "five", 4: "!", 5: "<eos>"})
PNG = b"\x89PNG\r\n\x1a\n rest"


def test_a_group_has_its_samples_by_index_with_log_probs_and_versions_of_each_token(tmp_path: Path) -> None:
    path = write(tmp_path, a_sample(2, 7, 1), a_sample(2, 8, 0), a_sample(2, 7, 0, metrics={"correct": 1.0}))
    first, second = group(path, 7, TEXTS)
    assert (first["index"], second["index"], first["metrics"]) == (0, 1, {"correct": 1.0})
    assert first["tokens"] == {
        "id": [3, 4, 5],
        "text": ["five", "!", "<eos>"],
        "logprob": [-0.5, -1.0, 0.0],
        "ratio": [],
        "version": [2, 3, 3],
    }
    assert (first["logprob_sum"], first["has_texts"], first["left_out"]) == (-1.5, True, 0)


def test_turns_say_which_tokens_are_theirs(tmp_path: Path) -> None:
    (found,) = group(write(tmp_path, an_episode()), 0, TEXTS)
    assert [(turn["start"], turn["end"], turn["observation"]) for turn in found["turns"]] == [
        (0, 1, ""),
        (1, 3, "left 2"),
    ]


def test_ratios_are_known_if_the_file_has_the_trained_log_probs(tmp_path: Path) -> None:
    path = write(tmp_path, a_sample())
    trained = pa.array([[-0.5, -1.0 + math.log(2), 0.0]], pa.list_(pa.float32()))
    pq.write_table(pq.read_table(path).append_column("logprobs", trained), path)
    (found,) = group(path, 0, TEXTS)
    assert found["tokens"]["ratio"] == pytest.approx([1.0, 2.0, 1.0], rel=1e-4)


def test_long_samples_are_cut_and_say_how_much_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_view, "MAX_TOKENS", 2)
    monkeypatch.setattr(sample_view, "MAX_TEXT", 3)
    (found,) = group(write(tmp_path, a_sample()), 0, TEXTS)
    assert (found["tokens"]["version"], found["left_out"]) == ([0, 1], 1)
    assert found["prompt"] == "2 + … 6 more characters"


def test_excerpts_are_beginnings_of_prompts_and_both_ends_of_completions(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        a_sample(prompt="x" * 500),
        a_sample(index=1, completion="short"),
        a_sample(index=2, completion="y" * 420 + "z" * 80),
    )
    long, short, ends = excerpts(path, [0, 1, 2])
    assert long["prompt"].startswith("x" * 160 + " … 340 more")
    assert short["completion"] == "short"
    assert ends["completion"] == f"{'y' * 80} … 340 more … {'z' * 80}"
    with pytest.raises(RefusedAnswer, match="has 3 rows"):
        excerpts(path, [3])


def test_pictures_are_served_by_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, a_sample(**a_picture(PNG)), a_sample(group_id=1, **a_picture(b"<svg onload='x'/>")))
    assert picture(path, 0, 0) == (PNG, "image/png")
    with pytest.raises(RefusedAnswer, match="neither PNG") as refused:
        picture(path, 1, 0)
    assert refused.value.status == 415
    for group_id, number in ((0, 1), (2, 0)):
        with pytest.raises(RefusedAnswer, match="has no picture"):
            picture(path, group_id, number)


@pytest.mark.parametrize(
    "name",
    [
        "", "..", "../config.toml", "step_000000.parquet/..", "/etc/passwd", "step_1.txt", "step_000009.parquet",
        "step_000000.parquet\x00", "held_out/version_000000.parquet", "step_٣.parquet",
    ],
)  # fmt: skip
def test_only_names_of_samples_files_lead_to_a_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / "samples", a_sample())
    (tmp_path / "config.toml").write_text("secret = 1")
    with pytest.raises(RefusedAnswer, match="no samples file"):
        sample_file(tmp_path / "samples", "train", name)
    assert sample_file(tmp_path / "samples", "train", "step_000000.parquet").is_file()


def test_a_group_that_is_not_there_and_a_damaged_file_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, a_sample())
    with pytest.raises(RefusedAnswer, match="has no group 5"):
        group(path, 5, TEXTS)
    path.write_bytes(b"PAR1")
    with pytest.raises(LedgerError, match=r"step_000000.parquet cannot be read"):
        group(path, 0, TEXTS)


# ── test token texts ──────────────────────────────────────────────────────────────────────────


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
    assert texts.texts_of([0, 1, 2, 3, 4]) == [" caf", "", "é", "\n", "<|end|>"]
    assert texts.texts_of([1]) == ["\ufffd"]
    assert texts.texts_of([1, 4]) == ["", "\ufffd<|end|>"]
    assert texts.texts_of([0, 99]) == [" caf", "⟨99⟩"]


def test_metaspace_pieces_become_text(tmp_path: Path) -> None:
    texts = tokenizer(tmp_path / "t.json", [["▁cafe", -1.0], ["<0x0A>", -2.0], ["s", -3.0]])
    assert texts.texts_of([0, 2, 1]) == [" cafe", "s", "\n"]


def test_words_stay_as_they_are(tmp_path: Path) -> None:
    assert tokenizer(tmp_path / "t.json", {"ab": 0, " c": 1}).texts_of([0, 1, 7]) == ["ab", " c", "⟨7⟩"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": {}}', '{"model": {"vocab": {"a": "x"}}}', '{"model": {"vocab": [[]]}}']
)
def test_a_file_that_is_no_tokenizer_gives_no_texts(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    texts = TokenTexts.read(tmp_path / "tokenizer.json")
    assert not texts
    assert texts.texts_of([1]) == ["⟨1⟩"]


def test_the_tokenizer_of_the_newest_checkpoint_stands_in_for_a_model_that_is_gone(tmp_path: Path) -> None:
    for step, word in ((10, "old"), (20, "new")):
        folder = tmp_path / f"step_{step:06d}"
        folder.mkdir()
        tokenizer(folder / "tokenizer.json", {word: 0})
    assert TokenTexts.of_run("/nowhere", tmp_path).texts_of([0]) == ["new"]
    assert not TokenTexts.of_run(None, tmp_path / "none")
