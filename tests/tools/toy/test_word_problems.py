"""Word problems: stories, answers and splits."""

import re
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages.words import Split
from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.verifiers.rules import Numeric
from asyncrl.tools.toy import word_problems
from asyncrl.tools.toy.word_problems import MAX_FIRST, MAX_SECOND, STORIES, Sign, WordProblem, problems

BUYS, LOST = STORIES["+"][0], STORIES["-"][1]
seeds = st.integers(0, 2**32)


def drawn(seed: int, count: int = 50, split: Split = "train") -> list[WordProblem]:
    return list(islice(problems(seed, split), count))


def told(sign: Sign, a: int, b: int, story: str = "", name: str = "Tom") -> WordProblem:
    return WordProblem(story or STORIES[sign][0], sign, a, b, name, "Ann", "pens")


def test_a_problem_reads_as_the_module_says() -> None:
    problem = WordProblem(BUYS, "+", 13, 8, "Tom", "Ann", "apples")
    asked, answered, question = problem.prompt
    assert asked["content"].startswith("Kim has 14 nuts and buys 3 more.")
    assert answered == {"role": "assistant", "content": "14 + 3 = 17"}
    assert question == {
        "role": "user",
        "content": "Tom has 13 apples and buys 8 more. How many apples does Tom have now?",
    }
    assert problem.answer == "21"
    assert WordProblem(LOST, "-", 9, 4, "Tom", "Ann", "pens").answer == "5"


@given(seeds)
def test_the_answer_is_that_of_the_numbers_told(seed: int) -> None:
    for problem in drawn(seed):
        found = [int(number) for number in re.findall(r"[0-9]+", problem.question)]
        assert sorted(found) == sorted([problem.a, problem.b])
        assert 2 <= problem.a <= MAX_FIRST
        assert 2 <= problem.b <= MAX_SECOND
        assert int(problem.answer) == (sum(found) if problem.sign == "+" else max(found) - min(found)) > 0


@pytest.mark.parametrize("sign", STORIES)
def test_every_story_tells_both_numbers_and_asks_once_for_a_number_of_things(sign: Sign) -> None:
    for story in STORIES[sign]:
        question = told(sign, 17, 5, story).question
        assert ("17" in question, "5" in question.replace("17", "")) == (True, True)
        assert re.search(r"How many (more )?pens [^?.]*\?$", question)
        assert question.count("?") == 1
        assert not re.search(r"[{}]", question)


def test_questions_hardly_repeat() -> None:
    assert len({problem.question for problem in drawn(0, 500)}) > 490


def test_files_share_no_calculation_whatever_its_order(tmp_path: Path) -> None:
    def calculations(split: Split) -> set[tuple[str, ...]]:
        word_problems.write(tmp_path / split, split, 0, num_rows=1000)
        rows = pq.read_table(tmp_path / split).to_pylist()
        assert {row["data_source"] for row in rows} == {"word_problems"}
        numbers = [re.findall(r"[0-9]+", row["prompt"][-1]["content"]) for row in rows]
        return {(*sorted(found), row["answer"]) for found, row in zip(numbers, rows, strict=True)}

    train, held_out = calculations("train"), calculations("held_out")
    assert train & held_out == set()
    assert len(held_out) > 20


def test_the_split_is_a_checksum_that_no_words_and_no_machine_change() -> None:
    """zlib.crc32 of "13+8" is 294412006, of "20+5" 2144220140, of "9-4" 3580209495: held out if 5 divides it."""
    assert told("+", 13, 8).split == told("+", 8, 13, STORIES["+"][3], "Eva").split == "train"
    assert told("+", 20, 5).split == told("+", 5, 20).split == told("-", 9, 4).split == "held_out"


def test_half_of_the_problems_are_sums_in_both_splits() -> None:
    for split in ("train", "held_out"):
        assert 400 < sum(problem.sign == "+" for problem in drawn(0, 1000, split)) < 600


def test_problems_are_a_function_of_seed_and_split(tmp_path: Path) -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    for name in ("one", "two"):
        word_problems.write(tmp_path / name, "held_out", 7, num_rows=20)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("said", "score"),
    [("13 + 8 = 21", 1.0), ("Tom has 21 pens.", 1.0), ("21 pens, not 5", 0.0), ("13 + 8 =", 0.0), ("many", 0.0)],
)
def test_the_reward_of_the_run_file_takes_the_last_number_of_an_answer(said: str, score: float) -> None:
    row = told("+", 13, 8)
    assert Numeric()(VerifierInput(prompt=row.prompt, completion=said, answer=row.answer))["score"] == score
