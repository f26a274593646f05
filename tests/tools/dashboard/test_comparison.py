"""Several runs side by side: what differs between them, and whether one is better."""

from typing import Any

from msgspec.structs import replace

from asyncrl.records.history import StepHistory
from asyncrl.records.run_record import RunRecord
from asyncrl.tools.dashboard.comparison import RunComparison, compare, in_order

STEPS = [{"step": step} for step in range(2)]


def run(name: str, accuracy: float, num_prompts: int = 256, **config: Any) -> RunRecord:
    settings = {"run.name": name, "run.steps": 40} | {key.replace("__", "."): value for key, value in config.items()}
    finished = {"event": "eval.finished", "policy_version": 40, "accuracy": accuracy, "num_prompts": num_prompts}
    return RunRecord(
        name=name,
        config=settings,
        summary=None,
        step_history=StepHistory(STEPS),
        events=[finished],
        pictured=[],
        notes=[],
    )


def sentence(found: RunComparison) -> str:
    return " ".join(filter(None, (found.doing, found.verdict, found.because)))


def test_runs_are_told_by_what_differs_and_are_equal_where_their_intervals_overlap() -> None:
    runs = [run(f"lr-{n}", 0.98 - n / 200, trainer__lr=n / 10_000, run__seed=n) for n in (1, 2, 4)]
    found = compare(runs)
    assert sentence(found) == (
        "3 runs, all stopped after step 2 of 40, none of them well. They differ in trainer.lr (0.0001 to 0.0004) and "
        "run.seed. No clear difference in held-out accuracy. It is 96.0 % to 97.5 %, and the 95 % intervals overlap."
    )
    assert found.settings == {"trainer.lr": ["0.0001", "0.0002", "0.0004"], "run.seed": ["1", "2", "4"]}
    assert (found.columns, found.best, found.is_alike) == (["trainer.lr", "run.seed"], None, True)


def test_a_run_is_the_best_if_its_interval_lies_above_those_of_all_others() -> None:
    found = compare([run("a", 0.5), run("b", 0.9), run("c", 0.4)])
    told = "They have the same settings. b is best, with a held-out accuracy of 90.0 %. Its 95 % interval lies above"
    assert (found.best, told in sentence(found)) == (1, True)
    found = compare([run("a", 0.5), run("b", 0.9), run("c", 0.89)])
    told = "b and c are best in held-out accuracy. Theirs are 89.0 % to 90.0 %, and the 95 % intervals overlap."
    assert (found.best, told in sentence(found)) == (None, True)
    assert compare([run("a", 0.5, 4), run("b", 0.9, 4)]).best is None, "few prompts tell little"


def test_runs_that_end_alike_are_told_apart_by_how_soon_they_learned_and_how_fast_they_are() -> None:
    def going(name: str, accuracies: dict[int, float], step_s: float) -> RunRecord:
        kind = "eval.finished"
        events = [
            {"event": kind, "policy_version": v, "accuracy": a, "num_prompts": 256} for v, a in accuracies.items()
        ]
        steps = [{"step": step, "step_s": step_s} for step in range(3)]
        return replace(run(name, 0.0), events=events, step_history=StepHistory(steps))

    slow, quick = going("slow", {0: 0.08, 10: 0.45, 40: 0.96}, 0.6), going("quick", {0: 0.08, 10: 0.97, 40: 0.95}, 0.2)
    told = "At version 10 they were apart: 45.0 % (slow) to 97.0 % (quick). A step takes 0.2 s (quick) to 0.6 s (slow)."
    assert sentence(compare([slow, quick])).endswith(f"the 95 % intervals overlap. {told}")
    assert sentence(compare([slow, slow])).endswith("the 95 % intervals overlap.")


def test_accuracies_on_other_prompts_are_not_compared() -> None:
    found = compare([run("a", 0.1, data__held_out="x.parquet"), run("b", 0.9, data__held_out="y.parquet")])
    assert sentence(found).endswith("Their held-out accuracies are not of the same prompts.")
    assert found.best is None


def test_runs_are_in_the_order_of_the_first_number_that_differs_whatever_their_results() -> None:
    runs = [run(f"lr-{n}", 0.5, trainer__lr=n / 10_000, run__seed=-n) for n in (2, 10, 1)]
    assert in_order(runs) == [2, 0, 1]
    assert in_order([run("b", 0.5, algorithm__loss="b"), run("a", 0.9, algorithm__loss="a")]) == [0, 1]
    assert in_order([run("b", 0.5), run("a", 0.9)]) == [0, 1]


def test_a_few_settings_are_named_and_have_columns_and_the_rest_are_counted() -> None:
    many = dict.fromkeys(("trainer__lr", "trainer__grad_clip", "trainer__weight_decay", "schedule__staleness"), 7)
    found = compare([run("a", 0.5), run("b", 0.5, run__seed=7, **many)])
    assert len(found.settings) == 5
    assert (len(found.columns), "and 2 more settings." in sentence(found)) == (3, True)
    assert list(found.settings)[-1] == "run.seed"
