"""Clicks through every page in headless Chromium, where the machine has it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright import sync_api

from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.tools.report.report import write_report
from tests.recorded_runs import MakeRun
from tests.tools.dashboard.browser_free import a_sample, an_episode, write

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
HOSTILE = "<img src=x onerror='document.title=1'><script>document.title=1</script>\u202e"

pytestmark = [
    pytest.mark.slow("starts Chromium"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def directory(make_run: MakeRun) -> RunDirectory:
    directory = make_run()
    for step in range(10):
        rows = [a_sample(step, group_id=step, index=i, reward=float(i % 2), prompt=HOSTILE) for i in range(20)]
        write(directory.samples, *rows, an_episode(step, group_id=100 + step, completion=HOSTILE))
    for node in ("rollout-0", "rollout-1"):
        directory.append_event("node.joined", node=node, role="rollout", time_s=1.0)
    directory.append_event("node.lost", node="rollout-1", role="rollout", cause=HOSTILE, time_s=9.0)
    seconds = {"sampling": 1.5, "waiting for the trainer": 0.5}
    with (directory.path / "times.jsonl").open("w") as file:
        for step in range(10):
            nodes = {f"rollout-{i}": {"role": "rollout", "seconds": seconds, "cores_busy": 0.5} for i in range(2)}
            file.write(json.dumps({"step": step, "time_s": 2.0 * (step + 1), "span_s": 2.0, "nodes": nodes}) + "\n")
    return directory


@pytest.fixture
def url(directory: RunDirectory) -> Iterator[str]:
    with served(directory) as address:
        yield address


@contextmanager
def served(*runs: RunDirectory) -> Iterator[str]:
    command = [sys.executable, "-m", "asyncrl", "dashboard", *(str(run.path) for run in runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.terminate()


@pytest.fixture(params=[(1280, 800), (390, 844)], ids=["desk", "phone"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page on which an error of a script, or a refusal by its own policy, fails the test."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(15_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    assert problems == []
    assert "asyncrl" in page.title()  # a script of the run's would have changed it
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def test_the_overview_is_live_zooms_and_smooths(page: Any, url: str, directory: RunDirectory) -> None:
    page.goto(url)
    page.get_by_text("Running at step 10 of 10").wait_for()
    directory.append_metrics({"step": 10, "time_s": 22.0, "reward": 0.25, "step_s": 2.0})
    page.get_by_text("Running at step 11 of 10").wait_for()
    chart = page.locator(".chart canvas").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60, steps=5)
    page.mouse.up()
    page.get_by_role("button", name="show everything").click()
    page.get_by_label("steps of which each point is the mean").press("End")
    page.locator(".chart .span", has_text="mean of last 50 steps").first.wait_for()
    page.get_by_label("log axis").check()
    page.get_by_label("x axis").select_option("time_s")
    chart.focus()
    chart.press("ArrowRight")
    page.locator(".tip:visible").wait_for()
    page.get_by_text("waits for a neighbour").first.wait_for()


def test_every_page_of_a_run_begins_with_its_state_and_result_and_whether_that_is_well(page: Any, url: str) -> None:
    for name in ("overview", "cluster", "samples", "timeline", "events", "config"):
        page.goto(f"{url}#/{name}")
        line = page.locator("main > .state-line", has_text="Running at step")
        line.wait_for()
        assert re.search(
            "held-out accuracy rose from 25.0 % to 75.0 %.*Not well. rollout-1 was lost", line.inner_text(), re.S
        )


def test_before_the_first_step_the_overview_has_nothing_to_turn_or_to_read_but_the_state(
    page: Any, make_run: MakeRun
) -> None:
    directory = make_run()
    directory.metrics.unlink()
    with served(directory) as url:
        page.goto(url)
        page.get_by_text("Curves, waits and samples begin with the first step.").wait_for()
        page.locator(".state-line", has_text="before the first step").wait_for()
        assert page.locator(".tools:visible, .waits:visible, .chart:visible").count() == 0
        directory.append_metrics({"step": 0, "time_s": 2.0, "reward": 0.25, "step_s": 2.0})
        page.locator(".chart:visible").first.wait_for()
        assert page.get_by_text("begin with the first step").is_hidden()


def test_several_runs_begin_with_how_they_differ_and_have_their_numbers_in_the_table_alone(
    page: Any, make_run: MakeRun, summary: Callable[..., RunSummary]
) -> None:
    runs = [make_run("strict", staleness=0.0), make_run("loose", staleness=1.0)]
    runs[0].write_summary(summary())
    with served(*runs) as url:
        page.goto(url)
        page.get_by_text("They differ in schedule.staleness (0.0 to 1.0). No clear difference").wait_for()
        heads = page.locator(".compare thead th").all_inner_texts()
        assert (heads[:3], heads[-2:]) == (["run", "held-out accuracy", "schedule.staleness"], ["state", "steps"])
        page.locator(".chart .legend", has_text="strictloose").first.wait_for()
        assert page.locator(".chart:not(.histogram) .now").count() == 0
        page.locator(".chart .span", has_text="mean of 10 steps").first.wait_for()
        assert page.get_by_label("run", exact=True).count() == 0
        edges = "getComputedStyle(document.querySelector('.scroll:has(.compare)')).backgroundAttachment"
        assert (
            page.evaluate(edges) == "local, local, scroll"
        )  # a shadow at the edge until the rest has been scrolled to
        page.goto(f"{url}#/config")
        page.get_by_text(re.compile("^1 of [0-9]+ settings")).wait_for()  # what a run is called is no difference
        page.goto(f"{url}#/cluster?run=1")
        page.get_by_text("one of 2 runs:").wait_for()


def test_a_curve_of_several_runs_ends_where_the_table_above_it_says(page: Any, make_run: MakeRun) -> None:
    runs = [make_run(name) for name in ("a", "b")]
    for run in runs:
        for step in range(10, 20):
            run.append_metrics({"step": step, "time_s": 22.0 + step, "reward": step / 20, "tokens_per_s": 70.0 * step})
    with served(*runs) as url:
        page.goto(url)
        page.get_by_role("img", name=re.compile("^Reward, last 0.725, 0.725")).wait_for()
        place = page.locator(".compare thead th").all_inner_texts().index("reward")
        assert page.locator(".compare tbody td").all_inner_texts()[place] == "0.725"


def test_samples_are_filtered_sorted_and_opened_and_texts_stay_texts(page: Any, url: str) -> None:
    page.goto(f"{url}#/events")
    page.get_by_text("\\u202e").locator("visible=true").first.wait_for()  # shown, in place of what turns the text
    assert "\u202e" not in page.inner_text("body")
    page.goto(f"{url}#/samples")
    page.get_by_text("210 samples").wait_for()
    page.get_by_text("Filter and sort").click()
    page.get_by_label("reward, minimum").fill("0.5")
    page.get_by_text("110 of 210 samples").wait_for()
    page.get_by_label("turns, minimum").fill("2")
    page.get_by_text(re.compile("^10 of 210 samples")).wait_for()
    assert "reward_min=0.5" in page.url
    page.locator("tbody tr").first.click()
    page.get_by_text("left 2").wait_for()
    for colour in ("version", "nothing", "log-prob"):
        page.get_by_label(colour).check()
    assert page.locator(".tokens span").count() == 3 or page.locator(".turn").count() == 2
    assert page.get_by_label("ratio").is_disabled()
    page.go_back()
    page.get_by_text(re.compile("^10 of 210 samples")).wait_for()
    assert page.locator("img").count() == 0


def test_pages_count_steps_from_1_and_filter_by_what_they_show(page: Any, url: str) -> None:
    page.goto(url)
    page.get_by_text("The newest samples, steps 1 to 10").wait_for()
    page.goto(f"{url}#/samples?step_min=10")
    page.get_by_text(re.compile("^21 of 210 samples")).wait_for()
    assert page.locator("tbody tr").first.locator("td").first.inner_text() == "10"
    page.locator("tbody tr").first.click()
    page.get_by_text("step 10, group").wait_for()


def test_nodes_are_filtered_and_sorted_and_have_the_use_of_their_machine_under_its_name(page: Any, url: str) -> None:
    page.goto(f"{url}#/cluster")
    page.get_by_text("2 nodes").wait_for()
    heads = set(page.locator(".virtual th").all_inner_texts())
    assert "machine CPU" in heads
    assert heads.isdisjoint({"CPU", "memory", "machine memory", "version"})  # no node told its memory
    page.get_by_role("button", name="times lost").click()
    page.get_by_label("filter nodes").fill("lost")
    page.get_by_text("1 of 2 nodes").wait_for()


def test_the_timeline_zooms_by_buttons_and_by_dragging(page: Any, url: str) -> None:
    page.goto(f"{url}#/timeline")
    page.locator(".tools", has_text="2 nodes").wait_for()
    page.get_by_label("zoom in").click()
    page.get_by_role("button", name="show everything").click()
    box = page.locator("canvas.bands").bounding_box()
    page.mouse.move(box["x"] + 160, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 240, box["y"] + 60, steps=5)
    page.mouse.up()
    page.get_by_role("button", name="show everything").wait_for()
    page.mouse.move(box["x"] + 200, box["y"] + 70)
    page.locator(".tip", has_text="75.0 % sampling").wait_for()


def test_events_are_filtered_and_opened(page: Any, url: str) -> None:
    page.goto(f"{url}#/events")
    page.get_by_text("6 events in").wait_for()
    page.get_by_label("text").fill("onerror")
    page.get_by_text("1 of 6 events in 1 group").wait_for()
    page.locator("summary").first.click()
    page.locator("details td", has_text=re.compile("rollout-1")).wait_for()


def test_settings_are_searched(page: Any, url: str) -> None:
    page.goto(f"{url}#/config")
    page.get_by_text("settings, 1 not the default").wait_for()
    first = page.locator(".first td.key", has_text="trainer.lr").bounding_box()
    assert first["y"] < page.viewport_size["height"] - 40
    page.get_by_label("which settings").select_option("all")
    page.get_by_label("search settings").fill("staleness")
    page.locator("td", has_text="one publish ahead").first.wait_for()
    page.get_by_label("which settings").select_option("changed")
    page.wait_for_function("document.querySelectorAll('.settings-list section').length === 1")  # what matters most


def test_the_report_of_two_runs_fits_its_screen(page: Any, make_run: MakeRun) -> None:
    runs = [make_run(name) for name in ("a-run-with-a-long-name", "another-run-with-a-long-name")]
    for run in runs:
        run.append_event("node.lost", node="rollout-0", cause="x" * 300, time_s=3.0)
    write_report([run.path for run in runs], runs[0].report)
    page.goto(runs[0].report.as_uri())
    assert page.locator("svg.chart").first.bounding_box()["y"] < 450
