"""When the held-out prompts are asked, and what is made of the answers."""

import pytest

from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections import Evaluation
from asyncrl.messages import Evaluated, Prompt, SpoolRef, TrajectorySummary, Unit

FINAL = 7
REF = SpoolRef("s", 0, 0, 1, 0)


def a_book(
    every: int = 0, *, at_start: bool = False, at_end: bool = False, num_prompts: int = 2, samples: int = 1
) -> EvaluationBook:
    config = Evaluation(every_versions=every, at_start=at_start, at_end=at_end, samples=samples, temperature=1.0)
    return EvaluationBook(config, [Prompt(text=str(i)) for i in range(num_prompts)], FINAL)


def a_unit(group_id: int, index: int = 0) -> Unit:
    return Unit(group_id, index, "held_out")


def answer(
    book: EvaluationBook, group_id: int, index: int = 0, *, reward: float, tokens: int = 10, cut: bool = False
) -> Evaluated | None:
    """One completion, and its verdict; the answer it votes for is its reward."""
    group = book.group(group_id)
    assert group
    slot = group.slots[index]
    slot.store(REF, TrajectorySummary(tokens, 4, 0, 0, 1, "length" if cut else "stop"))
    slot.judge(reward, {"correct": reward}, f"{reward:g}")
    return book.settle(slot.unit, failed=False)


@pytest.mark.parametrize(
    ("book", "versions"),
    [
        pytest.param(a_book(), [], id="never"),
        pytest.param(a_book(at_start=True), [0], id="at the start"),
        pytest.param(a_book(at_end=True), [7], id="at the end"),
        pytest.param(a_book(3), [3, 6], id="every third, and neither end unless asked"),
        pytest.param(a_book(7), [], id="the last version is the end's"),
        pytest.param(a_book(1, at_start=True, at_end=True), list(range(8)), id="every one"),
        pytest.param(a_book(1, at_start=True, at_end=True, num_prompts=0), [], id="nothing held out"),
    ],
)
def test_an_evaluation_is_due(book: EvaluationBook, versions: list[int]) -> None:
    due = []
    for version in range(FINAL + 1):
        book.version_live(version)
        if ongoing := book.start("a", version):
            due.append(version)
            for group_id in list(ongoing.open):
                book.settle(a_unit(group_id), failed=True)

    assert due == versions


def test_one_that_was_due_at_a_version_nobody_wrote_down_is_made_at_the_next() -> None:
    book = a_book(3)
    due = [version for version in (0, 2, 4, 5) if (book.version_live(version), book.start("a", version))[1]]
    assert due == [4]


def test_accuracy_is_over_the_prompts_that_have_a_verdict() -> None:
    book = a_book(at_start=True, num_prompts=4)
    book.version_live(0)
    book.start("a", 0)
    assert answer(book, 0, reward=1.0, tokens=10) is None
    assert answer(book, 1, reward=0.0, tokens=20, cut=True) is None
    assert answer(book, 2, reward=0.0, tokens=30) is None
    assert not book.is_finished

    result = book.settle(a_unit(3), failed=True)

    assert result
    assert (result.policy_version, result.num_prompts) == (0, 3)
    assert result.accuracy == pytest.approx(1 / 3)
    assert result.metrics == pytest.approx({"reward": 1 / 3, "length_mean": 20.0, "truncated": 1 / 3, "failed": 1.0})
    assert book.results == [result]
    assert book.is_finished


def test_a_prompt_settles_once() -> None:
    book = a_book(at_start=True)
    book.version_live(0)
    assert book.settle(a_unit(0), failed=True) is None, "nothing is under way"
    book.start("a", 0)

    assert book.settle(a_unit(0), failed=True) is None
    assert book.settle(a_unit(0), failed=True) is None
    assert book.settle(a_unit(1), failed=True)


def test_each_prompt_is_asked_as_often_as_there_are_samples() -> None:
    book = a_book(at_start=True, samples=3)
    book.version_live(0)
    ongoing = book.start("a", 0)

    assert ongoing
    assert [(group.group_id, group.size, group.split) for group in ongoing.open.values()] == [
        (0, 3, "held_out"),
        (1, 3, "held_out"),
    ]


def test_of_several_samples_the_result_says_how_often_they_are_right() -> None:
    book = a_book(at_start=True, samples=2)
    book.version_live(0)
    book.start("a", 0)
    assert answer(book, 0, 0, reward=1.0) is None
    assert answer(book, 1, 1, reward=0.0) is None
    assert answer(book, 0, 1, reward=0.0) is None
    result = answer(book, 1, 0, reward=0.0)

    assert result
    assert (result.accuracy, result.num_prompts) == (0.25, 2)
    found = result.metrics
    assert (found["avg@2"], found["pass@1"], found["pass@2"], found["maj@2"]) == (0.25, 0.25, 0.5, 0.25)


def test_a_sample_that_failed_for_good_takes_no_other_with_it() -> None:
    book = a_book(at_start=True, num_prompts=1, samples=3)
    book.version_live(0)
    book.start("a", 0)
    answer(book, 0, 2, reward=1.0)
    assert book.settle(a_unit(0, 1), failed=True) is None
    assert book.settle(a_unit(0, 1), failed=True) is None, "it is told twice"
    result = answer(book, 0, 0, reward=0.0)

    assert result
    assert (result.accuracy, result.num_prompts, result.metrics["failed"]) == (0.5, 1, 1.0)


def test_a_lost_node_restarts_it_with_new_ids_on_another() -> None:
    book = a_book(at_start=True)
    book.version_live(0)
    book.start("lost", 0)
    assert book.left("somebody else") is None

    lost = book.left("lost")

    assert lost
    assert not book.is_finished
    again = book.start("other", 1)
    assert again
    assert again.policy_version == 1
    assert set(again.open).isdisjoint(lost.open)


def test_what_falls_due_meanwhile_is_one_evaluation_afterwards() -> None:
    book = a_book(1, num_prompts=1)
    book.version_live(1)
    book.start("a", 1)
    book.version_live(2)
    book.version_live(3)
    assert book.start("b", 3) is None
    assert not book.is_waiting

    book.settle(a_unit(0), failed=True)

    assert book.is_waiting
    assert book.start("b", 3)
    assert not book.is_waiting


def test_what_an_earlier_life_measured_is_not_owed_and_its_ids_are_not_given_again() -> None:
    book = a_book(1, num_prompts=2)
    book.version_live(1)
    book.used(2)
    book.measured(Evaluated(1, 0.5, 2))
    assert book.is_finished

    book.version_live(2)
    ongoing = book.start("a", 2)

    assert ongoing
    assert list(ongoing.open) == [3, 4]
    assert book.results == [Evaluated(1, 0.5, 2)]


def test_a_result_of_an_earlier_version_leaves_the_later_one_owed() -> None:
    book = a_book(1)
    book.version_live(1)
    book.version_live(2)
    book.measured(Evaluated(1, 0.5, 2))

    assert book.is_waiting
