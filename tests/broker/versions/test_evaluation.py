"""Evaluations are due at the right versions, and their results are right."""

import pytest

from asyncrl.broker.groups.group import GroupBook, Slot
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit

FINAL = 7
REF = SpoolRef("s", 0, 0, 1, 0)


def a_book(
    every: int = 0, *, at_start: bool = False, at_end: bool = False, num_prompts: int = 2, samples: int = 1
) -> EvaluationBook:
    config = Evaluation(every_versions=every, at_start=at_start, at_end=at_end, samples=samples, temperature=1.0)
    return EvaluationBook(config, [Prompt(text=str(i)) for i in range(num_prompts)], FINAL, GroupBook())


def a_unit(group_id: int, index: int = 0) -> Unit:
    return Unit(group_id, index, "held_out")


def complete(
    book: EvaluationBook, group_id: int, index: int = 0, *, reward: float, tokens: int = 10, cut: bool = False
) -> Evaluated | None:
    """Store and reward one completion; its answer is its reward."""
    assert book.ongoing
    slot = book.ongoing.groups[group_id].slots[index]
    slot.store(REF, TrajectorySummary(tokens, 4, 0, 0, 1, "length" if cut else "stop"))
    slot.score(reward, {"correct": reward}, f"{reward:g}")
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
            for group in ongoing.groups:
                book.settle(group.slots[0].unit, failed=True)

    assert due == versions


def test_an_evaluation_due_at_an_unrecorded_version_is_made_at_the_next() -> None:
    book = a_book(3)
    due = []
    for version in (0, 2, 4, 5):
        book.version_live(version)
        if book.start("a", version):
            due.append(version)
    assert due == [4]


def test_accuracy_is_over_the_prompts_that_have_a_reward() -> None:
    book = a_book(at_start=True, num_prompts=4)
    book.version_live(0)
    book.start("a", 0)
    assert complete(book, 0, reward=1.0, tokens=10) is None
    assert complete(book, 1, reward=0.0, tokens=20, cut=True) is None
    assert complete(book, 2, reward=0.0, tokens=30) is None
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


def test_each_prompt_has_one_group_of_as_many_completions_as_configured() -> None:
    book = a_book(at_start=True, samples=3)
    book.version_live(0)
    ongoing = book.start("a", 0)

    assert ongoing
    assert [(group.group_id, group.size, group.split) for group in ongoing.groups] == [
        (0, 3, "held_out"),
        (1, 3, "held_out"),
    ]


def test_groups_name_the_rows_of_their_prompts() -> None:
    book = EvaluationBook(Evaluation(at_start=True), [Prompt(text="?")] * 2, FINAL, GroupBook(), rows=[0, 3])
    book.version_live(0)
    ongoing = book.start("a", 0)
    assert ongoing
    assert [group.row for group in ongoing.groups] == [0, 3]


def test_several_completions_of_a_prompt_give_avg_pass_and_maj_at_k() -> None:
    book = a_book(at_start=True, samples=2)
    book.version_live(0)
    book.start("a", 0)
    assert complete(book, 0, 0, reward=1.0) is None
    assert complete(book, 1, 1, reward=0.0) is None
    assert complete(book, 0, 1, reward=0.0) is None
    result = complete(book, 1, 0, reward=0.0)

    assert result
    assert (result.accuracy, result.num_prompts) == (0.25, 2)
    found = result.metrics
    assert (found["avg@2"], found["pass@1"], found["pass@2"], found["maj@2"]) == (0.25, 0.25, 0.5, 0.25)


def test_a_completion_that_failed_for_good_leaves_the_others_of_its_prompt() -> None:
    book = a_book(at_start=True, num_prompts=1, samples=3)
    book.version_live(0)
    book.start("a", 0)
    complete(book, 0, 2, reward=1.0)
    assert book.settle(a_unit(0, 1), failed=True) is None
    assert book.settle(a_unit(0, 1), failed=True) is None, "it is told twice"
    result = complete(book, 0, 0, reward=0.0)

    assert result
    assert (result.accuracy, result.num_prompts, result.metrics["failed"]) == (0.5, 1, 1.0)


def test_the_evaluation_of_a_lost_node_goes_on_where_it_stopped() -> None:
    book = a_book(at_start=True)
    book.version_live(0)
    book.start("lost", 0)
    complete(book, 0, reward=1.0)
    assert book.departed("somebody else") is None

    assert book.departed("lost")

    assert (book.is_waiting, book.is_finished) == (True, False)
    again = book.start("other", 0)
    assert again
    assert (again.peer, book.is_waiting, book.take_abandoned()) == ("other", False, [])
    result = complete(book, 1, reward=0.0)
    assert result
    assert (result.policy_version, result.accuracy, result.num_prompts) == (0, 0.5, 2)


def test_it_ends_without_a_result_if_the_next_node_has_another_version() -> None:
    book = a_book(at_start=True)
    book.version_live(0)
    lost = book.start("lost", 0)
    book.departed("lost")

    again = book.start("other", 1)

    assert lost
    assert again
    assert again.policy_version == 1
    assert [group.group_id for group in (*lost.groups, *again.groups)] == [0, 1, 2, 3]
    assert (book.take_abandoned(), book.take_abandoned()) == (lost.groups, [])


def test_a_node_that_returns_with_completions_of_the_evaluation_has_it_again_unless_another_took_it() -> None:
    book = a_book(at_start=True)
    book.version_live(0)
    book.start("lost", 0)
    assert not book.returned("another", 0)
    book.departed("lost")

    assert not book.returned("again", oldest_version=1), "its tokens are of another version"
    assert book.returned("again", oldest_version=0)
    assert book.returned("again", oldest_version=0), "its next completion"
    assert not book.returned("another", oldest_version=0)
    assert book.ongoing
    assert book.ongoing.peer == "again"


def test_evaluations_that_fall_due_meanwhile_become_one_afterwards() -> None:
    book = a_book(1, num_prompts=1)
    book.version_live(1)
    book.start("a", 1)
    book.version_live(2)
    book.version_live(3)
    assert book.start("b", 3) is None

    book.settle(a_unit(0), failed=True)

    assert book.start("b", 3)
    assert not book.is_waiting


def test_an_evaluation_of_an_earlier_broker_is_not_repeated_and_its_ids_are_not_reused() -> None:
    book = a_book(1, num_prompts=2)
    book.version_live(1)
    book.used(2)
    book.measured(Evaluated(1, 0.5, 2))
    assert book.is_finished

    book.version_live(2)
    ongoing = book.start("a", 2)

    assert ongoing
    assert [group.group_id for group in ongoing.groups] == [3, 4]
    assert book.results == [Evaluated(1, 0.5, 2)]


def test_a_result_of_an_earlier_version_leaves_the_later_one_due() -> None:
    book = a_book(1)
    book.version_live(1)
    book.version_live(2)
    book.measured(Evaluated(1, 0.5, 2))

    assert book.is_waiting


def test_kept_answers_are_spread_over_all_prompts_and_the_same_each_time() -> None:
    book = a_book(1, at_start=True, num_prompts=6, samples=2)
    for version in (0, 1):
        book.version_live(version)
        ongoing = book.start("a", version)
        assert ongoing
        first = ongoing.groups[0].group_id
        for place in range(6):
            for index in range(2):
                unit = a_unit(first + place, index)
                if (place, index) == (2, 0):
                    book.settle(unit, failed=True)
                else:
                    complete_slot(ongoing.groups[place].slots[index])
                    book.settle(unit, failed=False)
        (ended,) = book.take_finished()
        assert book.take_finished() == []
        chosen = [(prompt.text, slot.unit.index) for prompt, slot in ended.spread(3)]
        assert chosen == [("0", 0), ("4", 0)], "of places 0, 4 and 8, the second failed"
        assert len(ended.spread(100)) == 11


def complete_slot(slot: Slot) -> None:
    slot.store(REF, TrajectorySummary(10, 4, 0, 0, 1, "stop"))
    slot.score(1.0, {})
