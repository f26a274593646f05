"""Ranks that train together do what one would do alone: real processes, sharded parameters, one step each."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in the stubs
from torch.distributed.distributed_c10d import Store

from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError, RankDied, TransferError
from asyncrl.trainer.checkpoints.checkpoint import begin
from asyncrl.trainer.checkpoints.snapshot import stem_of
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import INTERFACES, RankGroup, SingleRank, collective
from tests.patience import PATIENCE_S
from tests.trainer.ragged_trajectories import ragged_trajectories
from tests.trainer.rank_processes import PARTIAL, Case, open_moments, trajectories_for

pytestmark = pytest.mark.slow("ranks are processes that import torch")

ALGORITHMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoupled": {
        "loss": "gspo",
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
        "correction": {
            "mode": "decoupled",
            "importance": "sequence",
            "importance_threshold": "2.0",
            "rejection": "token_k1",
            "rejection_threshold": "0.4_2.0",
            "mask_divergent": 0.05,
        },
    },
    "prompts": {
        "aggregation": "prompt-mean",
        "correction": {"mode": "decoupled", "rejection": "token_k1", "rejection_threshold": "0.4_2.0"},
    },
    "selecting": {"loss": "clip_cov", "advantage": "reinforce_plus_plus", "cov_ratio": 0.2, "cov_low": 0.01},
    "criticised": {"advantage": "gae", "lam": 0.9},
    "episodes": {"advantage": "gae", "lam": 0.9},
    "experts": {},
    "rounded": {"kl_coef": 0.1},
    "parallel": {"kl_coef": 0.1},
    "parallel-rounded": {},
    "replayed": {},
    "parallel-replayed": {},
}
UPDATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoupled": {"mini_batches": 2, "epochs": 2, "gradient_checkpointing": True},
    "prompts": {"mini_batches": 2},
    "selecting": {"mini_batches": 4},
    "criticised": {"lora": {"rank": 2}, "mini_batches": 2},
    "episodes": {"mini_batches": 2},
    "experts": {"gradient_checkpointing": True},
    "rounded": {"gradient_checkpointing": True},
    "parallel": {"gradient_checkpointing": True, "expert_parallel": True, "mini_batches": 2},
    "parallel-rounded": {"expert_parallel": True},
    "replayed": {"gradient_checkpointing": True},
    "parallel-replayed": {"gradient_checkpointing": True, "expert_parallel": True},
}
OFFLOADS: dict[tuple[str, int], dict[str, Any]] = {
    ("plain", 3): {"offload": ["moments"]},
    ("plain", 4): {"offload": ["parameters"]},
    ("experts", 3): {"offload": ["parameters", "activations"], "gradient_checkpointing": "selective"},
    ("decoupled", 3): {"offload": ["parameters", "reference"]},
    ("criticised", 2): {"offload": ["moments"]},
    ("criticised", 3): {"offload": ["parameters"]},
    ("rounded", 2): {"offload": ["moments", "reference", "activations"]},
    ("rounded", 4): {"offload": ["parameters", "reference", "activations"], "gradient_checkpointing": "selective"},
}
"""What these ranks have on the host, while the one that is compared with them has everything on its device."""
DTYPES = {"rounded": "bfloat16", "parallel-rounded": "bfloat16"}
SIZES = (2, 3, 4)
BUDGETS = {2: 36, 3: 90, 4: 60}
"""Tokens of a micro-batch. With 36 many hold one trajectory, and ranks run out of them at different times."""
EPISODE = 6
"""Tokens of an episode in those of a completion."""
CASES: list[tuple[str, int, int]] = [
    *itertools.product(("plain",), SIZES, (1,)),
    *itertools.product(("experts",), (3, 4), (1,)),
    *itertools.product(("decoupled", "criticised", "episodes"), (3,), (1,)),
    *itertools.product(("selecting", "prompts"), (2,), (1,)),
    *itertools.product(("rounded",), (2, 4), (1,)),
    *itertools.product(("experts", "criticised", "rounded", "replayed", "episodes"), (2,), (2,)),
    ("decoupled", 4, 2),
    ("parallel", 2, 1),
    ("parallel", 4, 2),
    ("parallel-rounded", 2, 1),
    ("parallel-replayed", 4, 2),
]
"""Algorithm, ranks, and how many of them share a row."""
MORE_CASES: list[tuple[str, int, int]] = [
    *itertools.product(("experts", "decoupled", "criticised", "replayed", "episodes"), (2,), (1,)),
    ("selecting", 3, 1),
    *itertools.product(("parallel",), (3, 4), (1,)),
    ("plain", 2, 2),
    ("experts", 4, 2),
]
"""Slow: `CASES` has each of these algorithms with another number of ranks or another sharing."""
SHARD_SIZES = {4: 2}
RESUMED = {2: 3, 3: 2, 4: 2}
"""Ranks that resume, and those that wrote what they resume."""
METRICS: dict[str, dict[str, Any]] = {"float32": {"rel": 1e-4, "abs": 1e-5}, "bfloat16": {"rel": 4e-3, "abs": 4e-3}}
MOMENTS: dict[str, dict[str, Any]] = {"float32": {"rtol": 1e-4, "atol": 1e-6}, "bfloat16": {"rtol": 0.1, "atol": 1e-3}}
"""A sum of bfloat16 products depends on its order, so on how the step is cut."""


def settings(algorithm: str, size: int, sharing: int = 1, **changes: Any) -> dict[str, Any]:
    """The case as a configuration; a process alone has its experts anyway."""
    max_tokens = BUDGETS.get(size, 10_000) * (EPISODE if algorithm == "episodes" else 1)
    changes = changes if size > 1 else {"expert_parallel": False}
    offload = OFFLOADS.get((algorithm, size), {}) if sharing == 1 else {}
    trainer = {
        "lr": 1e-3,
        "grad_clip": 0.5,
        "max_tokens_per_micro_batch": max_tokens // sharing,
        "sequence_parallel": sharing,
        **UPDATES[algorithm],
    }
    return {
        "model": {"path": "unused", "dtype": DTYPES.get(algorithm, "float32")},
        "data": {"train": "unused", "max_prompt_tokens": 16},
        "sampling": {"max_tokens": 20},
        "rollout": {"replay_routes": "replayed" in algorithm},
        "trainer": {**trainer, "ranks": size, "shard_size": SHARD_SIZES.get(size, 0), **offload, **changes},
        "algorithm": ALGORITHMS[algorithm],
        "environment": {"function": "unused.py:Unused", "max_tokens": 200} if algorithm == "episodes" else {},
    }


def case_name(algorithm: str, size: int, sharing: int = 1) -> str:
    return f"{algorithm}-{size}-{sharing}"


@pytest.fixture(scope="module")
def paths(model_path: Path, experts_path: Path, even_experts_path: Path) -> dict[str, Path]:
    parallel = dict.fromkeys(("parallel", "parallel-rounded", "parallel-replayed"), even_experts_path)
    return dict.fromkeys(ALGORITHMS, model_path) | dict.fromkeys(("experts", "replayed"), experts_path) | parallel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, Path]) -> Path:
    """Files written by the ranks of `CASES` and of those that resume."""
    cases = the_cases(CASES, paths)
    cases += [
        Case(f"resumed-{size}", size, settings("plain", size), str(paths["plain"]), seed=3, resumes=resumed)
        for size, resumed in ((size, case_name("plain", other)) for size, other in RESUMED.items())
    ]
    gathered = settings("parallel", 3, expert_parallel=False)
    cases.append(
        Case("parallel-resumed", 3, gathered, str(paths["parallel"]), seed=3, resumes=case_name("parallel", 2))
    )
    return trained(tmp_path_factory.mktemp("ranks"), cases)


@pytest.fixture(scope="module")
def more_folder(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, Path]) -> Path:
    """Files written by the ranks of `MORE_CASES`."""
    return trained(tmp_path_factory.mktemp("more-ranks"), the_cases(MORE_CASES, paths))


def the_cases(named: list[tuple[str, int, int]], paths: dict[str, Path]) -> list[Case]:
    return [Case(case_name(*case), case[1], settings(*case), str(paths[case[0]]), seed=3) for case in named]


def trained(folder: Path, cases: list[Case]) -> Path:
    """The folder, once the ranks of every case have written: one process imports torch, and its forks run all cases."""
    for case in cases:
        begin(folder / case.name, 1)
    (folder / "cases.json").write_bytes(msgspec.json.encode(cases))
    command = [sys.executable, "-m", "tests.trainer.rank_processes", str(folder), str(max(SIZES))]
    ranks = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert ranks.returncode == 0, ranks.stderr
    return folder


@pytest.mark.timeout(2 * PATIENCE_S)  # The first one waits for the ranks of all.
@pytest.mark.parametrize(("algorithm", "size", "sharing"), CASES)
def test_several_ranks_take_the_step_that_one_would_take(folder, paths, algorithm, size, sharing):
    assert_same_step(folder, paths, algorithm, size, sharing)


@pytest.mark.long("more ranks and algorithms")
@pytest.mark.parametrize(("algorithm", "size", "sharing"), MORE_CASES)
def test_so_do_more_of_them(more_folder, paths, algorithm, size, sharing):
    assert_same_step(more_folder, paths, algorithm, size, sharing)


def assert_same_step(folder: Path, paths: dict[str, Path], algorithm: str, size: int, sharing: int) -> None:
    config = decode(settings(algorithm, 1))
    alone, dtype = Learner(config, paths[algorithm]), DTYPES.get(algorithm, "float32")
    expected = alone.train(trajectories_for(alone, seed=3, has_turns=algorithm == "episodes"))
    metrics = msgspec.json.decode((folder / f"{case_name(algorithm, size, sharing)}.metrics").read_bytes())

    assert expected["grad_norm"] > 0.01
    assert 0.2 < expected.get("rollout_corr/rollout_rs_masked_fraction", 0.5) < 0.8, "some, but not all"
    cuts = {"micro_batches", "packed_tokens"}  # A prompt is read on each rank that has one of its group.
    if not config.algorithm.entropy_coef:
        cuts.add("entropy")  # that of every eighth token of a rank
    assert metrics.keys() == expected.keys()
    assert {k: v for k, v in metrics.items() if k not in cuts} == pytest.approx(
        {k: v for k, v in expected.items() if k not in cuts}, **METRICS[dtype]
    )
    written = list((folder / case_name(algorithm, size, sharing)).rglob("trainer/*.safetensors"))
    assert {stem_of(path.name) for path in written} == alone.snapshot().tensors.keys()
    for name, tensors in alone.snapshot().tensors.items():
        parts = [load_file(path) for path in written if stem_of(path.name) == name]
        assert len(parts) == size
        found = {key: tensor for part in parts for key, tensor in part.items()}
        assert found.keys() == tensors.keys()
        assert sum(map(len, parts)) == len(found), "each is written once"
        for key, moment in tensors.items():
            # Weights have moved by the sign of a gradient that may be near zero; moments are the gradient itself.
            is_moment = name.endswith("optimizer")
            torch.testing.assert_close(
                found[key], moment, **(MOMENTS[dtype] if is_moment else {"rtol": 1e-4, "atol": 4.1e-3})
            )


def moments(folder: Path) -> dict[str, torch.Tensor]:
    return {key: moment for path in folder.rglob("trainer/*.safetensors") for key, moment in load_file(path).items()}


@pytest.mark.parametrize("size", RESUMED)
def test_another_number_of_ranks_resumes_the_same_moments(folder, size):
    written, resumed = moments(folder / case_name("plain", RESUMED[size])), moments(folder / f"resumed-{size}")
    assert len(written) == len(resumed) > 20
    assert all(torch.equal(moment, resumed[name]) for name, moment in written.items())


def test_a_checkpoint_of_parallel_experts_resumes_on_any_ranks_that_gather_them(folder, paths):
    written, of_three = (moments(folder / name) for name in (case_name("parallel", 2), "parallel-resumed"))
    alone = Learner(decode(settings("parallel", 1)), paths["parallel"])
    with open_moments(folder / case_name("parallel", 2)) as stored:
        alone.resume(1, stored)
    of_one = alone.snapshot().tensors["optimizer"]

    assert any("experts.gate_up_proj" in name for name in written)
    for resumed in (of_three, of_one):
        assert written.keys() == resumed.keys()
        assert all(torch.equal(moment, resumed[name]) for name, moment in written.items())


def test_parallel_experts_are_saved_and_published_as_a_checkpoint_names_them(folder, paths):
    published = load_file(folder / f"{case_name('parallel', 2)}.published")
    saved = [load_file(file) for file in (folder / case_name("parallel", 2) / PARTIAL).glob("model*.safetensors")]
    weights = {name: weight for part in saved for name, weight in part.items()}

    assert {
        spec.name for spec in Learner(decode(settings("parallel", 1)), paths["parallel"]).policy.specs()
    } == weights.keys()
    assert weights.keys() == published.keys()
    assert all(torch.equal(weight, published[name]) for name, weight in weights.items())


@pytest.mark.parametrize("size", SIZES)
def test_what_sharded_ranks_publish_is_the_whole_model(folder, model_path, size):
    """AdamW's first step is the sign of the gradient: where that is near zero, it may be either."""
    alone = Learner(decode(settings("plain", 1)), model_path)
    alone.train(ragged_trajectories(seed=3))
    published = load_file(folder / f"{case_name('plain', size)}.published")

    assert {spec.name: spec.shape for spec in alone.policy.specs()} == {
        name: tuple(weight.shape) for name, weight in published.items()
    }
    for name, weight in alone.named_weights():
        torch.testing.assert_close(published[name], weight, rtol=0.0, atol=2.1e-3)
        assert (published[name] - weight).abs().mean() < 1e-5


class EmptyStore(Store):
    """Store of a group whose other ranks never come."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def get(self, key: str) -> bytes:
        if key == "here/0":
            return b"here"
        raise TransferError("trainer-b-rank-1 on b (rank 1) did not join the rendezvous within 600 s")


def test_a_rank_that_never_comes_is_named(tmp_path):
    with pytest.raises(RankDied, match=r"2 ranks .* could not form a group: trainer-b-rank-1 on b \(rank 1\) did not"):
        RankGroup(EmptyStore(), rank=0, size=2, timeout_s=60.0)


def test_a_device_that_is_not_there_is_a_mistake_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cuda"):
        RankGroup(EmptyStore(), rank=0, size=2, device_index=63, timeout_s=60.0, kind="cuda")


def test_an_interface_that_this_machine_lacks_is_a_mistake_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        RankGroup(EmptyStore(), rank=0, size=2, timeout_s=60.0, interface="203.0.113.1")


@pytest.fixture
def group():
    """Group of one rank, whose collectives do not wait."""
    group = RankGroup(HashStore(), rank=0, size=1, timeout_s=60.0)
    yield group
    group.close()


def test_an_error_in_a_collective_is_rank_died(group, config, model_path, make_trajectories, monkeypatch):
    def break_off(*_: object, **__: object) -> None:
        raise RuntimeError("connection closed\nby peer")

    learner = Learner(config(), model_path, ranks=group)
    monkeypatch.setattr(learner.policy, "score", break_off)
    with pytest.raises(RankDied, match=r"dead or stuck: connection closed$"):
        learner.train(make_trajectories())


def test_lack_of_memory_is_not_rank_died(group):
    with pytest.raises(torch.OutOfMemoryError), collective():
        raise torch.OutOfMemoryError("out of memory")


def test_without_a_group_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes"), collective():
        raise RuntimeError("shapes")


def test_every_group_of_a_device_is_aborted(group, monkeypatch):
    aborted: list[torch.device] = []
    backend = SimpleNamespace(abort=lambda: aborted.append(group.device))
    one = SimpleNamespace(_get_backend=lambda _: backend)
    monkeypatch.setattr("asyncrl.trainer.ranks.ranks.c10d", SimpleNamespace(_world=SimpleNamespace(pg_map=[one, one])))
    group.abort()
    assert aborted == [], "gloo has no such call"
    group.device = torch.device("cuda")
    group.abort()
    assert aborted == [group.device] * 2


def test_forming_a_group_leaves_no_interface_in_the_environment(group):
    assert not INTERFACES.values() & os.environ.keys()


def test_a_group_gathers_and_broadcasts_bytes(group):
    assert [group.all_gather(data) for data in (b"said", b"")] == [[b"said"], [b""]]
    assert [group.broadcast(data, 0) for data in (b"said", b"")] == [b"said", b""]


def test_a_single_rank_gathers_and_broadcasts_its_own_data() -> None:
    assert SingleRank().all_gather(b"said") == [b"said"]
    assert SingleRank().broadcast(b"said", 0) == b"said"
    with pytest.raises(ValueError, match="no rank 1"):
        SingleRank().broadcast(b"said", 1)
