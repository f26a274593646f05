"""Step sums: prompts, demonstrations and splits."""

import random
import re
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.tools.toy import step_sums
from asyncrl.tools.toy.step_sums import StepSum, noisy_chain, problems, wrong_guess

TOM = StepSum("Tom", (5, -3, 4))
seeds = st.integers(0, 2**32)


def drawn(seed: int, count: int = 20, more: float = step_sums.CONTINUE) -> list[StepSum]:
    return list(islice(problems(seed, "train", more=more), count))


def answered(completion: str) -> str:
    return completion.rpartition(step_sums.ANSWER)[2]


def test_a_problem_reads_as_the_module_says() -> None:
    assert TOM.prompt == "Tom a+5 b-3 c+4 How many now?"
    assert TOM.totals == [5, 2, 6]
    assert TOM.answer == "6"
    assert TOM.chain() == " a+5=5 b-3=2 c+4=6 #### 6"
    assert TOM.guess() == " #### 6"


@given(seeds)
def test_totals_and_lengths_stay_in_bounds(seed: int) -> None:
    for problem in drawn(seed):
        assert step_sums.MIN_STEPS <= len(problem.changes) <= step_sums.MAX_STEPS
        assert all(0 <= total <= 70 for total in problem.totals)
        assert all(1 <= abs(change) <= step_sums.MAX_CHANGE for change in problem.changes)


@given(seeds)
def test_a_guess_is_never_right(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed):
        assert re.fullmatch(r" #### \d+", guess := wrong_guess(problem, rng))
        assert answered(guess) != problem.answer


@given(seeds)
def test_a_noisy_chain_slips_once_and_carries_it_to_the_end(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed):
        noisy = noisy_chain(problem, rng)
        totals = [int(total) for total in re.findall(r"=(\d+)", noisy)]
        off = [got - right for got, right in zip(totals, problem.totals, strict=True)]
        assert off[-1] != 0
        assert set(off) <= {0, off[-1]}
        assert sorted(off, key=bool) == off
        assert answered(noisy) == str(totals[-1])


def test_a_shortest_chain_at_the_lower_bound_can_still_slip() -> None:
    assert answered(noisy_chain(StepSum("Ann", (1, -1)), random.Random(0))) in ("1", "2")


@given(seeds)
def test_every_text_is_made_of_the_words(seed: int) -> None:
    words = "|".join(map(re.escape, step_sums.WORDS))
    rng = random.Random(seed)
    for problem in drawn(seed):
        for text in (problem.prompt, problem.chain(), wrong_guess(problem, rng), noisy_chain(problem, rng)):
            assert re.fullmatch(f"(?:{words})+", text)


def test_the_split_is_a_checksum_that_no_machine_changes() -> None:
    """zlib.crc32 of "+5-3+4" is 2530821718, of "+2+2-1" 643890340: the last digit decides."""
    assert TOM.split == "train"
    assert StepSum("Tom", (2, 2, -1)).split == "held_out"


def test_a_name_does_not_move_a_problem_to_the_other_split() -> None:
    for problem in drawn(0, 50):
        assert {StepSum(name, problem.changes).split for name in step_sums.NAMES} == {problem.split}


def test_about_one_sequence_in_ten_is_held_out() -> None:
    rng = random.Random(0)
    sequences = {tuple(rng.choice((1, 2, 3, 4, 5)) for _ in range(6)) for _ in range(5000)}
    share = sum(StepSum("Tom", changes).split == "held_out" for changes in sequences) / len(sequences)
    assert 0.08 < share < 0.12


def test_problems_are_a_function_of_seed_and_split() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_a_higher_chance_of_more_makes_longer_problems() -> None:
    short, long = drawn(0, 500, more=0.5), drawn(0, 500, more=0.9)
    assert sum(len(p.changes) for p in short) < sum(len(p.changes) for p in long)


def test_files_share_no_sequence_and_held_out_rows_are_long(tmp_path: Path) -> None:
    def sequences(name: str) -> set[str]:
        table = pq.read_table(tmp_path / name)
        assert table.column_names == ["prompt", "answer", "data_source"]
        assert set(table["data_source"].to_pylist()) == {"step_sums"}
        return {prompt.partition(" ")[2] for prompt in table["prompt"].to_pylist()}

    step_sums.write(tmp_path / "train.parquet", "train", 0, num_rows=300)
    step_sums.write(tmp_path / "held_out.parquet", "held_out", 0, num_rows=64)
    train, held_out = sequences("train.parquet"), sequences("held_out.parquet")
    assert not train & held_out
    assert all(len(re.findall(r"[+-]", prompt)) >= step_sums.HELD_OUT_STEPS for prompt in held_out)


def test_the_same_seed_writes_the_same_rows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        step_sums.write(tmp_path / name, "train", 7, num_rows=20)
    assert pq.read_table(tmp_path / "one").equals(pq.read_table(tmp_path / "two"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="taken: it is a folder, not a file"):
        step_sums.write(tmp_path / "taken", "train", 0, num_rows=1)
