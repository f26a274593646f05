"""Hidden sums: prompts, demonstrations and splits. The environment is tested in tests/examples."""

import random
import re
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.tools.toy import hidden_sums
from asyncrl.tools.toy.demonstrations import Passage
from asyncrl.tools.toy.hidden_sums import (
    ERROR,
    LABELS,
    HiddenSum,
    problems,
    procedure,
    skip,
    sloppy_procedure,
    wrong_guess,
)

TOM = HiddenSum("Tom", (5, -3, 4))
seeds = st.integers(0, 2**32)


def drawn(seed: int, count: int = 20, summarized: float = 0.3) -> list[HiddenSum]:
    return list(islice(problems(seed, "train", summarized=summarized), count))


def text(passages: Sequence[Passage]) -> str:
    return "".join(passage.text for passage in passages)


def learned(passages: Sequence[Passage]) -> str:
    return "".join(passage.text for passage in passages if passage.is_learned)


def answered(passages: Sequence[Passage]) -> str:
    return passages[-1].text.removeprefix(hidden_sums.ANSWER)


def test_a_problem_reads_as_the_module_says() -> None:
    assert TOM.prompt == "Tom a b c How many now?"
    assert TOM.answer == "6"
    assert text(TOM.chain()) == " a ?+50+5 !=5 b ?-35-3 !=2 c ?+42+4 !=6 #### 6"
    assert text(TOM.guess()) == " #### 6"


def test_a_problem_after_a_summary_begins_with_the_total_and_the_boxes_that_are_left() -> None:
    summarized = HiddenSum("Tom", (5, -3, 4), num_added=1)
    assert summarized.prompt == "Tom so far 5 b c How many now?"
    assert text(summarized.chain()) == " b ?-35-3 !=2 c ?+42+4 !=6 #### 6"
    assert HiddenSum("Tom", (5, -3, 4), num_added=3).prompt == "Tom so far 6 How many now?"


def test_observations_are_not_learned() -> None:
    assert learned(TOM.chain()) == " a ?0+5 ! b ?5-3 ! c ?2+4 ! #### 6"


@given(seeds)
def test_the_prompt_tells_no_amount(seed: int) -> None:
    for problem in drawn(seed, summarized=0):
        assert not re.search(r"\d", problem.prompt)


@given(seeds)
def test_totals_and_lengths_stay_in_bounds(seed: int) -> None:
    for problem in drawn(seed):
        assert hidden_sums.MIN_BOXES <= len(problem.amounts) <= hidden_sums.MAX_BOXES
        assert all(1 <= abs(amount) <= hidden_sums.MAX_AMOUNT for amount in problem.amounts)
        assert all(0 <= total <= 30 for total in problem.totals)


@given(seeds)
def test_a_procedure_is_right_with_all_its_errors(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed):
        assert answered(procedure(problem, rng)) == answered(sloppy_procedure(problem, rng)) == problem.answer


def test_malformed_calls_are_answered_with_an_error_and_not_learned_in_the_clean_phase() -> None:
    rng = random.Random(0)
    played = [procedure(problem, rng) for problem in drawn(0, 500)]
    pairs = [pair for passages in played for pair in pairwise(passages)]
    before = [said for said, heard in pairs if heard.text == ERROR]
    assert all(re.fullmatch(r" [a-f] \?", said.text) for said in before if said.is_learned), "a look that failed"
    assert all(re.search(r" [?!]$", said.text) for said in before if not said.is_learned)
    assert {said.is_learned for said in before} == {True, False}


def test_malformed_calls_are_learned_in_the_mixture() -> None:
    rng = random.Random(0)
    played = [sloppy_procedure(problem, rng) for problem in drawn(0, 500)]
    pairs = [pair for passages in played for pair in pairwise(passages)]
    assert {said.is_learned for said, heard in pairs if heard.text == ERROR} == {True}


@given(seeds)
def test_a_guess_is_never_right_and_comes_at_once(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed, summarized=0):
        guess = wrong_guess(problem, rng)
        assert re.fullmatch(r" #### \d+", text(guess))
        assert answered(guess) != problem.answer


def test_nobody_guesses_after_a_summary() -> None:
    assert answered(wrong_guess(HiddenSum("Tom", (5, -3, 4), num_added=2), random.Random(0))) == "6"


@given(seeds)
def test_a_skip_leaves_out_one_box_and_is_wrong(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed, summarized=0):
        skipping = skip(problem, rng)
        assert text(skipping).count("?") == len(problem.amounts) - 1
        assert answered(skipping) != problem.answer
        assert "=-" not in text(skipping)


def test_a_box_whose_amount_later_ones_need_is_not_skipped() -> None:
    """Without the first box of +5 -3 the adder would have to give -3."""
    skips = {text(skip(HiddenSum("Tom", (5, -3)), random.Random(seed))) for seed in range(20)}
    assert skips == {" a ?+50+5 !=5 #### 5"}


def test_a_skip_with_no_box_left_answers() -> None:
    assert text(skip(HiddenSum("Tom", (5, -3), num_added=2), random.Random(0))) == " #### 2"


@given(seeds)
def test_every_passage_is_made_of_whole_words(seed: int) -> None:
    words = "|".join(map(re.escape, sorted(hidden_sums.WORDS, key=len, reverse=True)))
    rng = random.Random(seed)
    for problem in drawn(seed):
        passages = [*sloppy_procedure(problem, rng), *wrong_guess(problem, rng), *skip(problem, rng)]
        for part in (problem.prompt, *(passage.text for passage in passages)):
            assert re.fullmatch(f"(?:{words})+", part)


@given(seeds)
def test_a_turn_ends_with_a_mark_or_is_the_last(seed: int) -> None:
    """So stop strings cut what the policy writes into the same turns."""
    rng = random.Random(seed)
    for problem in drawn(seed):
        *before, last = [passage for passage in problem.chain() if passage.is_learned]
        assert all(re.search(r" [?!]$", said.text) for said in before)
        assert not re.search(r" [?!]", last.text)
        assert problem.chain()[-1] == last
        assert skip(problem, rng)[-1].is_learned


def test_the_split_is_a_checksum_that_no_machine_changes() -> None:
    """zlib.crc32 of "+5-3+4" is 2530821718, of "+2+2-1" 643890340: the last digit decides."""
    assert TOM.split == "train"
    assert {HiddenSum(name, (2, 2, -1)).split for name in hidden_sums.NAMES} == {"held_out"}


def test_problems_are_a_function_of_seed_and_split() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert {problem.split for problem in islice(problems(3, "held_out"), 5)} == {"held_out"}


def test_a_share_of_problems_begins_after_a_summary() -> None:
    assert not any(problem.num_added for problem in islice(problems(0, "train"), 200))
    begun = [problem.num_added for problem in drawn(0, 1000, summarized=0.25) if problem.num_added]
    assert 200 < len(begun) < 300
    assert set(begun) == set(range(1, hidden_sums.MAX_BOXES + 1))


def test_rows_are_chats_and_the_amounts_are_beside_them(tmp_path: Path) -> None:
    hidden_sums.write(tmp_path / "train.parquet", "train", 0, num_rows=20)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    for row, problem in zip(rows, islice(problems(0, "train"), 20), strict=True):
        assert row["prompt"] == [{"role": "user", "content": problem.prompt}]
        assert (row["answer"], row["data_source"]) == (problem.answer, "hidden_sums")
        assert tuple(map(int, row["extra_info"]["amounts"].split())) == problem.amounts
        assert (
            problem.prompt.split()[1 : 1 + len(problem.amounts)]
            == [label.strip() for label in LABELS][: len(problem.amounts)]
        )


def test_the_same_seed_writes_the_same_rows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        hidden_sums.write(tmp_path / name, "held_out", 7, num_rows=20)
    assert pq.read_table(tmp_path / "one").equals(pq.read_table(tmp_path / "two"))
