import shutil
from collections.abc import Callable
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.lock import locked
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import read_run
from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.dashboard.overview import state_line
from asyncrl.tools.report.charts import COLOURS, DARK_COLOURS, plain
from asyncrl.tools.report.report import SHOWN, write_report

MakeRun = Callable[..., RunDirectory]

VOID = {"meta", "br"}


class Tags(HTMLParser):
    """Collects the opened tags and checks that each one is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)


def report(*runs: RunDirectory, ago_s: float = 1.0) -> str:
    """Report of runs whose last record was so many seconds ago."""
    out = runs[0].report
    changed_s = max((run.events.stat().st_mtime for run in runs if run.events.exists()), default=0.0)
    write_report([run.path for run in runs], out, wall_clock=lambda: changed_s + ago_s)
    return out.read_text(encoding="utf-8")


def test_a_running_run_says_what_the_one_who_waits_is_waiting_for(make_run: MakeRun) -> None:
    directory = make_run()
    for step in range(10):
        rollout = NodeTimes("rollout", {"waiting for the trainer": 0.5, "sampling": 0.5})
        directory.append_times(TimesLine(step, 2.0 + step, 1.0, {"rollout-0": rollout}))
    assert "rollouts waited 50 % of the time of all 10 steps, mostly for the trainer." in report(directory)


def test_a_finished_run_is_one_self_contained_page(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary())
    html = report(directory)

    tags = Tags(html).opened
    assert tags.count("svg") == 9
    assert "script" not in tags
    assert not any(
        word in html.replace("http://www.w3.org/2000/svg", "") for word in ("http", "src=", "url(", "@import")
    )
    assert "✓ finished" in html
    assert "<th>held-out accuracy after</th><td>75.0 %</td>" in html
    assert "<th>log-prob gap, mean</th><td>2e-06</td>" in html
    assert "<th>schedule.staleness</th><td>1.0</td>" in html
    assert "3 notable events" in html
    assert "<th>eval.finished</th><td>20.0 s</td><td></td><td>v10: accuracy 75.0 % of 64 prompts</td>" in html


def test_a_failed_run_shows_its_cause_and_the_events_before(
    make_run: MakeRun, summary: Callable[..., RunSummary]
) -> None:
    directory = make_run()
    directory.append_event("node.exited", node="rollout-0", cause="killed by signal 9", restarting=False)
    directory.append_event("run.finished", status="failed", cause="rollout-0 exited")
    directory.write_summary(summary(status="failed", cause="rollout-0 exited"))
    html = report(directory)

    assert "✗ failed" in html
    assert (
        "<th>node.exited</th><td>–</td><td>trouble</td>"
        "<td>node=rollout-0   cause=killed by signal 9   restarting=false</td>" in html
    )
    assert "<th>run.finished</th><td>–</td><td>trouble</td><td>failed: rollout-0 exited</td>" in html
    assert "<title>asyncrl: tiny, failed</title>" in html
    assert '<h1><span>tiny</span> <span class="pill failed">✗ failed</span></h1>' in html
    assert "<span>It failed: rollout-0 exited.</span>" in html


def test_a_running_run_and_an_empty_directory_give_a_page_too(make_run: MakeRun) -> None:
    directory = make_run()
    assert "… stopped" in (html := report(directory, ago_s=500.0))
    assert "<span>No broker serves it on this machine: <code>asyncrl resume</code> continues it.</span>" in html
    with locked(directory.lock, "held"):
        html = report(directory)
    assert "… running" in html
    assert "Running at step 10 of 10; held-out accuracy rose from 25.0 % to 75.0 %." in html

    shutil.rmtree(directory.path)
    directory.path.mkdir()
    html = report(directory)
    Tags(html)
    assert "metrics.jsonl is missing or empty" in html
    assert "Not recorded: Reward, mean of the step;" in html


def test_a_run_that_has_just_begun_names_no_missing_file_and_only_the_numbers_that_it_has(make_run: MakeRun) -> None:
    directory = make_run()
    with locked(directory.lock, "held"):
        assert "<th>trained tokens / s</th>" in report(directory)
        directory.metrics.unlink()
        html = report(directory)
    assert "Running before the first step" in html
    assert "metrics.jsonl is missing" not in html
    assert "<th>trained tokens / s</th>" not in html


def test_an_unfinished_run_names_its_trouble_first_as_the_dashboard_does_and_when_that_was(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("node.lost", node="rollout-0", role="rollout", cause="silent for 10 s", time_s=21.0)
    directory.append_event("run.waiting", cause="no rollout is connected", time_s=22.0)
    changed_s = directory.events.stat().st_mtime
    trouble = "rollout-0 was lost at 21.0 s: silent for 10 s. It {}: no rollout is connected."
    html = report(directory)
    assert html.index(trouble.format("waits")) < html.index("<svg")
    assert '<span class="pill failed">1 node lost</span>' in html
    html = report(directory, ago_s=500.0)
    assert trouble.format("waited") in html
    line = state_line(read_run(directory.path, wall_clock=lambda: changed_s + 500.0), {})
    word = f'<b class="bad">{line.word}</b>'
    because = plain(line.because).replace("`asyncrl resume`", "<code>asyncrl resume</code>")
    assert f'<span>{plain(line.doing)}</span> <span class="judged">{word} <span>{because}</span></span>' in html
    assert f"As of {datetime.fromtimestamp(changed_s + 500.0).astimezone():%Y-%m-%d %H:%M %Z}." in html


def test_several_runs_stand_side_by_side_with_their_differing_settings(make_run: MakeRun) -> None:
    html = report(make_run("sync", staleness=0.0), make_run("async", staleness=1.0))

    Tags(html)
    assert "<thead><tr><th></th><th>sync</th><th>async</th></tr></thead>" in html
    assert "<tr><th>wall time</th><td>20.0 s</td><td>20.0 s</td></tr>" in html
    assert "<tr><th>schedule.staleness</th><td>0.0</td><td>1.0</td></tr>" in html
    assert "differing settings" in html
    assert '<p class="quiet">sync: 3 notable events</p>' in html
    told = '<span class="sentence"><span>Running at step 10 of 10.</span>'
    assert f'<strong>sync</strong> <span class="pill running">… running</span> {told}' in html


def test_runs_stand_in_the_order_of_the_setting_that_differs_as_on_the_dashboard(make_run: MakeRun) -> None:
    html = report(make_run("loose", staleness=2.0), make_run("strict", staleness=0.5))
    assert "<thead><tr><th></th><th>strict</th><th>loose</th></tr></thead>" in html


def test_equal_configs_are_said_to_be_equal(make_run: MakeRun) -> None:
    assert "The runs have the same config." in report(make_run("a"), make_run("b"))


def test_nothing_a_run_recorded_can_inject_html(make_run: MakeRun) -> None:
    nasty = "<script>alert('&')</script>"
    directory = make_run("<i>run")
    directory.config.write_text(f'[model]\npath = "{nasty}"\n["{nasty}"]\nx = 1\n')
    JsonLines(directory.events).append({"event": nasty, nasty: nasty})
    directory.append_event("run.finished", status="failed", cause=nasty)
    html = report(directory)

    assert "script" not in Tags(html).opened
    assert "i" not in Tags(html).opened
    assert html.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") >= 6


def test_a_flood_of_events_is_cut_to_the_last_ones(make_run: MakeRun) -> None:
    directory = make_run()
    for group_id in range(SHOWN + 50):
        directory.append_event("group.dropped", group_id=group_id, reason="too many failures")
    html = report(directory)

    assert f"{SHOWN + 53} notable events; the last {SHOWN}:" in html
    assert html.count("<th>group.dropped</th>") == SHOWN
    assert f"group_id={SHOWN + 49} " in html
    assert "group_id=49 " not in html


def test_a_death_is_one_row_that_says_when_it_was_over_and_resumptions_differ_in_words(
    make_run: MakeRun,
) -> None:
    directory = make_run()
    died = {"node": "rollout-0", "cause": "was killed by SIGKILL"}
    directory.append_event("node.exited", time_s=12.0, **died)
    directory.append_event("node.lost", time_s=12.0, **died)
    later = RunDirectory(directory.path, wall_clock=lambda: 1_700_000_025.5)
    later.append_event("node.joined", node="rollout-0", time_s=17.0)
    later.append_event("run.finished", status="interrupted", cause="stop", time_s=18.0)
    later.append_event("run.resumed", start=2, time_s=18.0)
    later.append_event("trainer.resumed", steps=8, path="step_000008", time_s=20.0)
    html = report(directory)

    assert "<th>node.exited</th><td>12.0 s</td><td>over after 5.5 s</td>" in html
    assert "<th>node.lost</th>" not in html
    assert "<td>the run was resumed after 0.0 s</td><td>interrupted: stop</td>" in html
    assert "<td>the broker serves the run again (start 2)</td>" in html
    assert "<td>the trainer has loaded the weights after step 8: step_000008</td>" in html


def test_a_setting_that_changed_is_marked_with_its_step_and_time(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("setting.changed", key="schedule.staleness", value=2, before=1.0, by="alice", time_s=6.5)
    html = report(directory)
    assert html.count("<th>schedule.staleness</th><td>1.0; 2 after 3 steps (6.5 s)</td>") == 2
    assert "schedule.staleness: 1.0 → 2, by alice" in html
    assert "1.0; 2 after 3 steps" in report(directory, make_run("other")), "a setting that differs between runs"


def test_a_report_about_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run directory"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ConfigError, match="no such run"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_curves_come_first_and_the_reader_chooses_light_or_dark(make_run: MakeRun) -> None:
    html = report(make_run())
    body = html[html.index("<body>") :]
    assert body.index("Reward, mean of the step") < body.index("Numbers") < body.index("Further curves")
    assert body.index("held-out accuracy rose from 25.0 % to 75.0 %.") < body.index("Reward, mean of the step")
    assert "color-scheme: light dark" in html
    assert "@media (prefers-color-scheme: dark)" in html
    assert 'class="line c0"' in body
    for place in range(len(DARK_COLOURS)):
        assert f".chart .c{place} {{ stroke: {DARK_COLOURS[place]}; }}" in html


def test_both_palettes_stand_out_from_their_ground() -> None:
    assert min(contrast(colour, "#ffffff") for colour in COLOURS) >= 4
    assert min(contrast(colour, "#1a1e25") for colour in DARK_COLOURS) >= 4
    assert len(COLOURS) == len(DARK_COLOURS)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
