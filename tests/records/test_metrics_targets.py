"""A scrape reads the actors that run, and nothing of a process that serves no metrics."""

import asyncio
import json
import os

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.metrics import Sample
from asyncrl.records.metrics_targets import Sources, belongs_to, collect_in, discoverable, read_from

SLOTS = Sample("asyncrl_rollout_slots", 8)
PAYLOADS = Sample("asyncrl_spool_payloads", 3)


def test_what_runs_is_read_until_it_ends():
    async def main():
        sources = Sources()
        collect_in(sources)
        with read_from(lambda: [SLOTS]):
            with read_from(lambda: [PAYLOADS]):
                both = list(sources)
            one = list(sources)
        return both, one, list(sources)

    assert asyncio.run(main()) == ([SLOTS, PAYLOADS], [SLOTS], [])


def test_tasks_of_the_process_add_to_its_sources():
    async def actor(until: asyncio.Event):
        with read_from(lambda: [SLOTS]):
            await until.wait()

    async def main():
        sources, until = Sources(), asyncio.Event()
        collect_in(sources)
        running = asyncio.create_task(actor(until))
        await asyncio.sleep(0)
        during = list(sources)
        until.set()
        await running
        return during, list(sources)

    assert asyncio.run(main()) == ([SLOTS], [])


def test_without_sources_an_actor_runs_and_is_not_read():
    def source():
        raise AssertionError("nobody asked")

    with read_from(source):
        pass


# ── test targets ──────────────────────────────────────────────────────────────────────────────
# Prometheus finds a process by a file in the run directory, for as long as the process runs.


def test_a_process_is_a_target_of_its_run_while_it_runs(tmp_path):
    with discoverable(tmp_path / "metrics", "try-7", "rollout-0", "127.0.0.1:9403") as target:
        path = tmp_path / "metrics" / "try-7.rollout-0.json"
        assert target.path == tmp_path / "metrics" / "try-7.rollout-0.json"
        assert json.loads(path.read_text()) == [{"targets": ["127.0.0.1:9403"], "labels": {"run": "try-7"}}]
        assert [each.name for each in path.parent.iterdir()] == ["try-7.rollout-0.json"]
    assert list(path.parent.iterdir()) == []


def test_whoever_may_list_the_folder_may_read_its_files(tmp_path):
    """Prometheus is often another user, and what a node writes is its user's alone."""
    before = os.umask(0o077)
    try:
        for name, mode in (("open", 0o755), ("group", 0o750), ("own", 0o700)):
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(mode)
            with discoverable(tmp_path / name, "a", "b", "127.0.0.1:9403"):
                read = (tmp_path / name / "a.b.json").stat().st_mode & 0o777
                assert read == mode & 0o666 & ~0o022
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "metrics").write_text("a file")
    sentence = r"cannot write .*metrics/broker-0\.json, which tells Prometheus"
    folder = tmp_path / "metrics"
    with pytest.raises(ConfigError, match=sentence), discoverable(folder, "", "broker-0", "127.0.0.1:9400"):
        raise AssertionError("not reached")


def test_without_the_name_of_a_run_there_is_no_label(tmp_path):
    with discoverable(tmp_path, "", "gpu1-rollout", "10.0.0.7:9400"):
        text = (tmp_path / "gpu1-rollout.json").read_text()
        assert json.loads(text) == [{"targets": ["10.0.0.7:9400"], "labels": {}}]


def test_a_process_that_learns_its_run_is_a_target_of_that_run(tmp_path):
    with discoverable(tmp_path, "", "gpu1-rollout", "10.0.0.7:9400"):
        belongs_to("try-7")
        assert [path.name for path in tmp_path.iterdir()] == ["try-7.gpu1-rollout.json"]
        text = (tmp_path / "try-7.gpu1-rollout.json").read_text()
        assert json.loads(text) == [{"targets": ["10.0.0.7:9400"], "labels": {"run": "try-7"}}]
        belongs_to("try-7")
        assert [path.name for path in tmp_path.iterdir()] == ["try-7.gpu1-rollout.json"]
    assert list(tmp_path.iterdir()) == []
    belongs_to("try-8")
    assert list(tmp_path.iterdir()) == [], "a process that serves no metrics is no target"


def test_a_process_whose_target_cannot_be_renamed_goes_on(tmp_path):
    folder = tmp_path / "metrics"
    with discoverable(folder, "", "reward-0", "127.0.0.1:9400"):
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("a file")
        belongs_to("try-7")
        folder.unlink()
