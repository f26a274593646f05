"""Episodes in the page, with words that cannot become markup."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn
from asyncrl.records.evaluation_metrics import accuracy_by_source, multi_sample_metrics, pass_curve
from asyncrl.records.history import StepHistory
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.records.samples import PicturedSample, SampledEpisode
from asyncrl.tools.report import report
from asyncrl.tools.report.report import (
    MAX_CHARS,
    MAX_PICTURE_CHARS,
    MAX_TURNS,
    Markup,
    episodes,
    evaluation_charts,
    headline,
    pictures,
)
from tests.conftest import draw_picture

TURNS = [
    Turn(FROM_PROMPT, 0, 1, text="<b>look"),
    Turn(0, 1, 1, reward=0.5, observation="left 2", text="4"),
    Turn(FROM_NOTHING, 3, 1, observation="a summary", text="5"),
]


def a_record(*played: SampledEpisode, name: str = "run") -> RunRecord:
    return RunRecord(
        name=name,
        config={},
        summary=None,
        step_history=StepHistory(),
        events=[],
        pictured=[],
        notes=[],
        episodes=list(played),
    )


def an_episode(turns: list[Turn] = TURNS, finish_reason: str = "stop") -> SampledEpisode:
    return SampledEpisode(
        step=3,
        group_id=7,
        index=1,
        prompt="How many?",
        answer="4",
        reward=0.5,
        finish_reason=finish_reason,
        turns=turns,
    )


def test_a_run_without_episodes_has_no_section() -> None:
    assert list(episodes([a_record(), a_record()])) == []


def test_an_episode_is_shown_turn_by_turn_with_branches_and_rewards() -> None:
    found = "\n".join(episodes([a_record(an_episode())]))
    assert "<h2>Episodes</h2>" in found
    assert "7/1: reward 0.5; 3 turns in 2 branches" in found
    assert "&lt;b&gt;look" in found
    assert "<th>turn 2, own context</th><td>a summary</td><td>5</td>" in found
    assert "reward 0.5, 1 token after 1" in found


def test_an_episode_that_a_limit_has_ended_says_so_and_long_ones_are_cut() -> None:
    long = [Turn(place - 1, 0, 1, text="x" * 1000) for place in range(MAX_TURNS + 2)]
    found = "\n".join(episodes([a_record(an_episode(long, "length"), name="one"), a_record(name="two")]))
    assert "reward 0.5, cut by a limit;" in found
    assert "x" * MAX_CHARS + " …" in found
    assert "2 more" in found
    assert "one: one of each of the first groups of step 4" in found


# ── test evaluation charts ────────────────────────────────────────────────────────────────────
# Charts of evaluations with several completions per prompt, and with several data sources.

MakeRun = Callable[..., RunDirectory]

METRICS = {
    "reward": 0.4,
    "avg@4": 0.4,
    "pass@4": 0.8,
    "pass@1": 0.4,
    "pass@2": 0.6,
    "maj@4": 0.5,
    "openai/gsm8k/avg@4": 0.5,
    "openai/gsm8k/pass@4": 0.9,
    "math/avg@4": 0.3,
}


def test_the_pass_curve_ascends_and_covers_all_sources_together() -> None:
    assert pass_curve(METRICS) == [(1, 0.4), (2, 0.6), (4, 0.8)]
    assert multi_sample_metrics(METRICS) == {"avg@4": 0.4, "maj@4": 0.5, "pass@4": 0.8}
    assert accuracy_by_source(METRICS) == {"openai/gsm8k": 0.5, "math": 0.3}


def test_one_completion_per_prompt_of_one_source_gives_no_further_metrics() -> None:
    plain = {"reward": 0.4, "length_mean": 12.0}
    assert (pass_curve(plain), multi_sample_metrics(plain), accuracy_by_source(plain)) == ([], {}, {})
    assert accuracy_by_source({"math/accuracy": 0.3, "math/reward": 0.1}) == {"math": 0.3}


def test_accuracy_alone_gives_no_charts(make_run: MakeRun) -> None:
    assert evaluation_charts([read_run(make_run().path)]) == []


def test_first_and_last_version_are_drawn_side_by_side(make_run: MakeRun) -> None:
    directory = make_run()
    for version in (0, 5, 10):
        directory.append_event("eval.finished", policy_version=version, accuracy=0.4, num_prompts=8, **METRICS)
    record = read_run(directory.path)

    curves, over_versions, by_source = evaluation_charts([record])

    assert [evaluation.metrics["pass@4"] for evaluation in record.evaluations()] == [0.8] * 3
    assert ">version 0</text>" in curves
    assert ">version 10</text>" in curves
    assert "version 5" not in curves
    assert ">maj@4</text>" in over_versions
    assert ">openai/gsm8k</text>" in by_source


def test_several_runs_are_labelled_by_name(make_run: MakeRun) -> None:
    records = []
    for name in ("first", "second"):
        directory = make_run(name)
        directory.append_event("eval.finished", policy_version=3, accuracy=0.4, num_prompts=8, **METRICS)
        records.append(read_run(directory.path))

    curves, *_ = evaluation_charts(records)

    assert ">first version 3</text>" in curves
    assert ">second version 3</text>" in curves


# ── test headline ─────────────────────────────────────────────────────────────────────────────

EXPECTED = {
    "steps": "10 of 10",
    "wall time": "20.0 s",
    "held-out accuracy before": "25.0 %",
    "held-out accuracy after": "75.0 %",
    "held-out reward before": "–",
    "held-out reward after": "–",
    "held-out, of several completions": "–",
    "held-out, by data source": "–",
    "held-out prompts": "64",
    "training reward at first": "0.2 (first 5 steps)",
    "training reward at last": "0.7 (last 5 steps)",
    "trained tokens": "10.0k",
    "time of the steps": "20.0 s",
    "trained tokens / s": "500",
    "a step, mean": "2 s",
    "trainer waiting": "25.0 %",
    "rollouts waiting": "50.0 %",
    "staleness, mean": "0.5",
    "staleness, max": "1",
    "pause per publish": "4 ms",
    "log-prob gap, mean": "2e-06",
    "log-prob gap, max": "1e-05",
    "nodes lost": "0",
    "processes of asyncrl run that died": "0",
    "groups dropped": "0",
}


def test_a_finished_run_in_numbers(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary())

    assert headline(read_run(directory.path)) == EXPECTED


def test_the_same_numbers_come_out_of_the_steps_alone(make_run: MakeRun) -> None:
    assert headline(read_run(make_run().path)) == EXPECTED


def test_held_out_rewards_are_among_the_numbers(make_run: MakeRun) -> None:
    directory = make_run()
    for version, reward in ((0, 0.125), (20, 0.5)):
        directory.append_event("eval.finished", policy_version=version, accuracy=0.25, num_prompts=8, reward=reward)
    numbers = headline(read_run(directory.path))
    assert (numbers["held-out reward before"], numbers["held-out reward after"]) == ("0.125", "0.5")


def test_failures_are_counted(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("node.lost", node="rollout-0", cause="no beat")
    directory.append_event("node.exited", node="rollout-0", cause="signal 9", restarting=True)
    for group_id in range(3):
        directory.append_event("group.dropped", group_id=group_id, reason="too many failures")
    numbers = headline(read_run(directory.path))

    assert (numbers["nodes lost"], numbers["processes of asyncrl run that died"], numbers["groups dropped"]) == (
        "1",
        "1",
        "3",
    )


def test_a_run_that_did_nothing_has_the_same_labels(tmp_path: Path) -> None:
    numbers = headline(read_run(tmp_path))

    assert list(numbers) == list(EXPECTED)
    assert set(numbers.values()) == {"0", "–"}


# ── test page ─────────────────────────────────────────────────────────────────────────────────


def test_text_is_escaped_wherever_it_goes() -> None:
    nasty = '<script>alert("&")</script>'
    made = [
        report.text(nasty),
        report.text("x", style='"><script>'),
        report.table([nasty, ""], [[nasty, nasty]]),
        report.folded(nasty, report.text("x")),
        report.page(nasty, []),
    ]

    assert all("<script" not in markup for markup in made)
    assert all("&lt;script&gt;" in markup for markup in made)


def test_markup_goes_through_as_it_is() -> None:
    assert (
        report.row([report.text("a", "b"), report.text("c", "b")], "div", "side")
        == '<div class="side"><b>a</b> <b>c</b></div>'
    )


def test_a_table_without_headings_has_no_head() -> None:
    assert "<thead>" not in report.table([], [["a", "b"]])
    assert "<thead><tr><th></th><th>run</th></tr></thead>" in report.table(["", "run"], [["a", "b"]])


def test_a_page_fetches_nothing() -> None:
    html = report.page("x", [])

    assert html.startswith("<!doctype html>")
    assert not any(word in html for word in ("http", "src=", "<link", "@import", "url("))


# ── test pictures ─────────────────────────────────────────────────────────────────────────────
# Pictures inside the page, with words that cannot become markup.

MakeRecord = Callable[..., RunRecord]


def sample(**changes: object) -> PicturedSample:
    fields = {"step": 3, "prompt": "<image> How many?", "completion": "<b>four", "answer": "4", "reward": 0.5}
    return PicturedSample(**fields | {"files": [draw_picture(8, 8)]} | changes)  # type: ignore[arg-type]


@pytest.fixture
def record() -> MakeRecord:
    def make(*pictured: PicturedSample, name: str = "run") -> RunRecord:
        return RunRecord(
            name=name, config={}, summary=None, step_history=StepHistory(), events=[], pictured=list(pictured), notes=[]
        )

    return make


def html(parts: Iterator[Markup]) -> str:
    return "\n".join(parts)


def test_a_run_without_pictures_has_no_section(record: MakeRecord) -> None:
    assert html(pictures([record(), record()])) == ""


def test_a_picture_is_inside_the_page_with_its_completion_and_reward(record: MakeRecord) -> None:
    found = html(pictures([record(sample())]))
    assert 'src="data:image/png;base64,iVBOR' in found
    assert "&lt;b&gt;four" in found
    assert "reward 0.5, answer 4" in found
    assert "the first groups of step 4" in found


def test_a_file_that_is_no_known_picture_is_not_put_into_the_page(record: MakeRecord) -> None:
    found = html(pictures([record(sample(files=[b"<svg onload=alert(1)>"]))]))
    assert "<img" not in found
    assert "a picture in another format" in found


def test_long_texts_are_cut_and_several_runs_named(record: MakeRecord) -> None:
    found = html(pictures([record(sample(completion="x" * 1000), name="one"), record(name="two")]))
    assert "x" * MAX_PICTURE_CHARS + " …" in found
    assert "one: one trajectory" in found
