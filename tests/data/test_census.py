"""What is odd about the rows of a run."""

from pathlib import Path

import msgspec

from asyncrl.config.sections.data import Data
from asyncrl.data.census import LEAST_CHARS, Census, prompt_key
from asyncrl.data.prompts import held_out_stream, num_shared_prompts, oddities, train_stream
from asyncrl.messages.trajectory import Image, Prompt


def test_the_same_question_has_one_key_whatever_its_form() -> None:
    chat = Prompt(chat=[{"role": "user", "content": "1 + 1\n= ?"}], answer="2")
    assert prompt_key(chat) == prompt_key(Prompt(text=" 1 + 1 =  ?"))
    assert prompt_key(chat) != prompt_key(Prompt(text="1 + 1 ="))
    pictured = Prompt(text="1 + 1 = ?", images=[Image(digest=b"1" * 32, width=1, height=1, num_bytes=1)])
    assert prompt_key(pictured) != prompt_key(Prompt(text="1 + 1 = ?"))


def test_repeated_rows_missing_answers_and_lengths_are_counted() -> None:
    census = Census()
    for text, answer in [("a", "1"), ("b", "1"), ("a", "2"), ("c" * LEAST_CHARS, ""), ("d" * (LEAST_CHARS + 1), "1")]:
        census.add(Prompt(text=text, answer=answer))
    census.add(None)
    assert census.sentences() == [
        "1 of 5 rows repeat the prompt of an earlier one",
        "1 of 5 rows have no answer, and the others have one",
        "1 of 5 rows are more than 20 times as long as the median",
    ]


def test_rows_that_all_lack_an_answer_are_not_odd() -> None:
    census = Census()
    census.add(Prompt(text="a"))
    census.add(Prompt(text="b"))
    assert census.sentences() == []


def test_held_out_prompts_that_are_trained_on_are_counted_among_those_that_are_taken(tmp_path: Path) -> None:
    for name, prompts in {"train": "abcd", "held": "xabyz"}.items():
        rows = [{"prompt": letter, "answer": "1"} for letter in prompts]
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    data = Data(train=str(tmp_path / "train.jsonl"), held_out=str(tmp_path / "held.jsonl"))
    train = train_stream(data, seed=0)

    assert num_shared_prompts(train, held_out_stream(data, 0)) == 2
    assert num_shared_prompts(train, held_out_stream(data, 2)) == 1
    assert oddities(train, held_out_stream(data, 2)) == ["1 of 2 held-out prompts are among those trained on"]
    assert oddities(train, None) == []
