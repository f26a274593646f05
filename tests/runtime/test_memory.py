"""Memory of a run against the memory that there is."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from transformers import Qwen3Config

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.runtime import memory
from asyncrl.runtime.memory import LIBRARIES_HOST, Room, check_memory, parse_bytes, plan_memory, room_here
from asyncrl.spool.segments import CACHE_BYTES, INDEX_BYTES, most_indexed
from asyncrl.trainer.memory import Phase
from tests.conftest import make_vision_model

MODEL = Qwen3Config(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
NONE = Room()


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """``run(trainer={"ranks": 2})``"""
    MODEL.save_pretrained(tmp_path)

    def build(**sections: dict[str, Any]) -> Config:
        base: dict[str, Any] = {
            "model": {"path": str(tmp_path)},
            "data": {"train": "unused", "max_prompt_tokens": 16},
            "sampling": {"max_tokens": 16},
        }
        return decode({key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})

    return build


def with_library(config: Config, backend: Literal["auto", "gloo"]) -> Config:
    return replace(config, weights=replace(config.weights, backend=backend))


def part(phase: Phase, name: str) -> int:
    found = next(part for part in phase.parts if part.name == name)
    return found.device + found.host


def test_the_built_in_engine_has_its_cache_weights_and_staging(run: Any) -> None:
    rollout = plan_memory(run(rollout={"slots": 5}), NONE).rollout
    cache = KVCache(MODEL, slots=5, positions=32, dtype=torch.float32, device=torch.device("cpu"))
    assert part(rollout, "KV cache") == cache.num_bytes
    assert part(rollout, "staging") == pytest.approx(part(rollout, "weights"), rel=0.01)


def test_a_rollout_that_stages_one_bucket_takes_less(run: Any) -> None:
    weights = {"staging": "bucket", "bucket_bytes": 100_000}
    rollout = plan_memory(run(weights=weights, rollout={"engine": "vllm"}), NONE).rollout
    assert part(rollout, "staging") == 4 * 1000 * 64, "the embedding is larger than a bucket"


def test_vllm_takes_its_fraction_of_a_device(run: Any) -> None:
    settings = {"engine": "vllm", "vllm": {"gpu_memory_utilization": 0.5}}
    config = run(rollout=settings, trainer={"device": "cuda"}, weights={"backend": "gloo"})
    embedding = 4 * 1000 * 64
    assert plan_memory(config, Room(device=1 << 30)).rollout.device == (1 << 29) + embedding, "loaded beside the old"


def test_in_turns_the_host_has_what_sleeps_and_a_device_the_libraries_of_both(run: Any) -> None:
    devices = {"trainer": {"device": "cuda", "ranks": 4}, "rollout": {"device": "cuda", "replicas": 2}}
    apart = plan_memory(run(**devices), NONE)
    devices["rollout"]["colocated"] = True
    in_turns = plan_memory(run(**devices), NONE)

    kept = sum(part(in_turns.trainer[1], name) for name in ("weights", "moments"))
    assert part(in_turns.rollout, "memory that sleeps") == 4 * kept // 2 > part(in_turns.rollout, "weights")
    assert in_turns.host == apart.host + 4 * kept
    for phase in (*in_turns.trainer, in_turns.rollout):
        assert part(phase, "libraries of who sleeps") == memory.LIBRARIES_DEVICE


@pytest.mark.slow("plans with real shapes")
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_rollout_on_a_device_has_two_buckets_there_and_a_version_on_its_host(run: Any, engine: str) -> None:
    config = run(
        rollout={"engine": engine, "device": "cuda"}, trainer={"device": "cuda"}, weights={"bucket_bytes": 1000}
    )
    over_nccl, over_gloo = (plan_memory(with_library(config, library), NONE).rollout for library in ("auto", "gloo"))
    assert over_nccl.device - over_gloo.device == part(over_nccl, "buckets to receive") == 2 * 4 * 1000 * 64
    assert over_nccl.host == over_gloo.host == LIBRARIES_HOST + part(over_gloo, "staging")


def test_vllm_divides_weights_and_stages_them_once_for_all_workers(run: Any) -> None:
    vllm = {"tensor_parallel_size": 2, "kv_cache_bytes": 1000}
    config = run(rollout={"engine": "vllm", "vllm": vllm}, trainer={"device": "cuda"}, weights={"backend": "gloo"})
    rollout = plan_memory(config, NONE).rollout
    assert part(rollout, "staging") == pytest.approx(2 * part(rollout, "weights"), rel=0.01)
    assert part(rollout, "KV cache") == 1000


def test_on_a_cpu_a_machine_holds_trainer_and_rollouts(run: Any) -> None:
    two, three = (plan_memory(run(rollout={"replicas": replicas}), NONE) for replicas in (2, 3))
    assert three.host - two.host == two.rollout.device + two.rollout.host
    assert two.host > max(phase.device for phase in two.trainer) + 2 * LIBRARIES_HOST


def test_a_run_that_fits_is_accepted(run: Any) -> None:
    assert plan_memory(run(), Room(device=1 << 40, host=1 << 40)).problem == ""
    check_memory(run(), NONE)


@pytest.mark.parametrize(
    ("sections", "room", "sentence"),
    [
        (
            {"trainer": {"device": "cuda"}},
            Room(device=1 << 20),
            r"the trainer needs .* on each cuda device \(step\), but a device has 1 MiB; change trainer\..* first: ",
        ),
        (
            {"rollout": {"engine": "vllm", "device": "cuda", "slots": 1}},
            Room(device=1 << 10),
            r"a rollout needs .* on each cuda device \(rollout\), but a device has 1 KiB; change rollout\.vllm",
        ),
        (
            {"rollout": {"slots": 100_000}},
            Room(host=1 << 30),
            r"the run needs .* of this machine's memory, but it has 1\.0 GiB; change rollout\.slots first",
        ),
    ],
    ids=["trainer", "rollout", "machine"],
)
def test_a_run_that_does_not_fit_is_one_sentence(run: Any, sections: Any, room: Room, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_memory(run(**sections), room)


def test_the_memory_of_devices_may_be_given(run: Any) -> None:
    room = room_here(run(trainer={"device": "cuda"}), "80GB")
    assert room.device == 80_000_000_000
    assert room.host is not None


def test_the_memory_of_the_machine_may_be_given(run: Any) -> None:
    assert room_here(run(), host_memory="2TB").host == 2 * 10**12


def test_what_is_too_much_for_a_host_is_not_changed_on_a_device(run: Any) -> None:
    """vLLM's cache is the largest part of all, and no part of the host's memory."""
    config = run(rollout={"engine": "vllm"}, trainer={"device": "cuda"})
    problem = plan_memory(config, Room(device=80 * 10**9, host=1 << 20)).problem
    assert "this machine's memory" in problem
    assert "gpu_memory_utilization" not in problem


def test_a_container_has_the_memory_of_its_limit(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("1000\n")
    assert room_here(run()) == Room(device=None, host=1000)
    (tmp_path / "memory.max").write_text("max\n")
    assert (room_here(run()).host or 0) > 1000


def test_sizes_have_a_unit() -> None:
    assert parse_bytes("1.5GiB", "--x") == 3 << 29
    for text in ("80", "80G", "0GB", "GB"):
        with pytest.raises(ConfigError, match=r"--x is .*expected a number of bytes with a unit, such as 80GB"):
            parse_bytes(text, "--x")


def test_a_broker_is_planned_with_all_that_its_spool_may_hold(run: Any) -> None:
    plan = plan_memory(run(schedule={"groups_per_step": 2, "group_size": 4, "staleness": 1.0}), NONE)
    assert part(plan.broker, "newest payloads") == CACHE_BYTES
    assert plan.broker.parts[-1].host == most_indexed(2 * 2 * 4) * INDEX_BYTES
    assert plan.host > plan.broker.host > CACHE_BYTES


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_a_model_that_reads_pictures_is_planned_with_its_tower(run: Any, tmp_path: Path, family: str) -> None:
    make_vision_model(tmp_path, family)
    plan = plan_memory(run(), NONE)
    weights = load_file(tmp_path / "model.safetensors").values()
    assert part(plan.rollout, "weights") == 4 * sum(weight.numel() for weight in weights)
    assert any("every prompt is one picture" in sentence for sentence in plan.assumptions)
    assert not plan.problem
