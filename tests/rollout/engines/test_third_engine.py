"""An engine of a host is as good as asyncrl's own, by its name in the catalogue or by the path of its function."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.config.engines import ENGINES
from asyncrl.config.run_file import decode, with_absolute_paths
from asyncrl.errors import ConfigError
from asyncrl.runtime import check_functions as functions
from asyncrl.runtime.check_functions import check_functions
from asyncrl.runtime.checks import check_engine
from asyncrl.runtime.machine import Devices, needed, share
from asyncrl.runtime.memory import Room, plan_memory
from asyncrl.runtime.rollout import load_engine
from asyncrl.testing.engine import CHECKS, Check, Subject
from tests.rollout.engines.third_engine import ENTRY, ThirdEngine

FILE = """
from asyncrl.testing import FakeEngine


class Mine(FakeEngine):
    def __init__(self, config):
        super().__init__()
        self.config = config


def silent(config):
    return None


def broken(config):
    raise ValueError("no such card")
"""


def run(engine: str, model: str = "m", **sections: Any) -> Config:
    rollout = {"engine": engine, **sections.pop("rollout", {})}
    return decode({"model": {"path": model}, "data": {"train": "t"}, "rollout": rollout, **sections})


@pytest.fixture(autouse=True)
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that names it; `load_engine` changes the variables for the whole process."""
    monkeypatch.setitem(ENGINES, "third", ENTRY)
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.setenv(variable, "")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_of_an_engine(check: Check) -> None:
    config = run("third")
    asyncio.run(check(Subject(make=lambda: ThirdEngine(config), is_sampling=False, deadline_s=5.0, quiet_s=0.001)))


def test_it_is_configured_described_and_loaded_on_the_device_that_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    config = run("third", rollout={"slots": 3})
    engine = load_engine(config)

    assert isinstance(engine, ThirdEngine)
    assert (engine.slots, engine.device_kind) == (3, "cuda")
    assert check_engine(config, "cuda") == "third-engine (not installed here)"


def test_it_has_one_device_for_each_replica() -> None:
    two = Devices("cuda", ("0", "1"))
    assert needed(two, run("third").rollout) == 1
    assert [one.ids for one in share(two, run("third").rollout, 2)] == [("0",), ("1",)]


def test_a_plan_says_that_its_memory_is_not_counted(toy: Path) -> None:
    plan = plan_memory(run("third", str(toy / "model")), Room())
    assert [part.name for part in plan.rollout.parts] == ["weights", "staging", "libraries"]
    assert any("rollout.engine = 'third' takes beside its weights is not known" in said for said in plan.assumptions)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"sampling": {"top_k": 9, "replay_mask": True}},
            "sampling.replay_mask with rollout.engine='third', which rec",
        ),
        ({"rollout": {"replay_routes": True}}, "rollout.replay_routes with rollout.engine='third', which records no r"),
        ({"rollout": {"colocated": True}}, "rollout.colocated with rollout.engine='third', which cannot leave its dev"),
        ({"environment": {"tools": ["calculator"]}}, "an [environment] with rollout.engine='third', which cannot cont"),
        ({"weights": {"staging": "bucket"}}, "replaces weights while decoding is paused, which rollout.engine='third'"),
        (
            {"rollout": {"vllm": {"enforce_eager": True}}},
            "rollout.vllm.enforce_eager is only read with engine='vllm', not 'third'; remove it",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_before_it_is_loaded(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run("third", **sections)
    assert sentence in str(refused.value)


def test_it_may_be_a_file_that_nobody_registers(file: Path) -> None:
    config = with_absolute_paths(run(f"{file.name}:Mine"), file.parent)
    check_functions(config)
    engine: Any = load_engine(config)

    assert type(engine).__name__ == "Mine"
    assert engine.config.rollout.device == "cpu"
    assert check_engine(config, "cpu") == f"{file}:Mine"


def test_a_file_may_record_sleep_and_converse_but_not_swap_in_place(file: Path) -> None:
    sampling = {"top_k": 9, "replay_mask": True}
    run(f"{file}:Mine", sampling=sampling, rollout={"colocated": True}, environment={"tools": ["calculator"]})
    with pytest.raises(ConfigError, match="replaces weights while decoding is paused, which"):
        run(f"{file}:Mine", weights={"staging": "bucket"})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("silent", "returned a NoneType, which lacks encode, decode, specs, generate"),
        ("broken", r"raised ValueError: no such card \(.*mine.py:16\)"),
        ("Mines", r"has no function 'Mines': did you mean 'Mine'\?"),
    ],
)
def test_a_function_that_gives_no_engine_is_one_sentence(file: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^rollout\.engine.*{sentence}"):
        load_engine(run(f"{file}:{name}"))


def test_a_node_that_may_not_import_the_file_does_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCRL_ALLOW_CODE", "/nowhere")
    with pytest.raises(ConfigError, match="this node may only import code from /nowhere"):
        load_engine(run(f"{file}:Mine"))
    assert isinstance(load_engine(run("third")), ThirdEngine)


def test_a_missing_file_is_found_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"^rollout.engine is 'nowhere.py:Mine', but there is no file"):
        functions._check(run("nowhere.py:Mine"))
