"""The run file of SmolLM2 trains it, whole and by adapters, with both engines; two steps learn nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.toy.models import find_gguf, make_smollm2
from asyncrl.trainer.model import loading
from asyncrl.trainer.model.loading import fuse_norms
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from tests.integration.conftest import StartRun, ToyRun, starting_runs

CONF = Path(__file__).parents[2] / "conf" / "smollm2.toml"
BRIEF = (
    *("schedule.groups_per_step=2", "schedule.group_size=4", "rollout.slots=8"),
    *("evaluation.max_prompts=4", "evaluation.every_versions=0", "trainer.warmup_steps=0"),
)
LORA = "trainer.lora.rank=8"
VLLM = ('rollout.engine="vllm"', "rollout.vllm.enforce_eager=true", "rollout.vllm.kv_cache_bytes=134217728")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the model, its data and its run file."""
    try:
        find_gguf()
    except ConfigError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("smollm2")
    make_smollm2(folder, report=lambda _: None)
    (folder / "toy.toml").write_text(CONF.read_text().replace("cache/smollm2", str(folder)))
    return folder


@pytest.fixture
def start(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(made, tmp_path_factory) as start:
        yield start


def check(run: ToyRun) -> None:
    """Wait until the run has trained two steps by the log-probs that it sampled with, and lost nothing."""
    run.end()
    assert run.code == 0, run.errors
    audit = run.audit()
    assert (audit.problems, audit.skipped, audit.double_trained) == ([], 0, 0)
    assert run.summary.steps == 2
    assert run.summary.logprob_gap_max is not None
    assert run.summary.logprob_gap_max <= 1e-4


@pytest.mark.slow("whole runs of real processes")
@pytest.mark.parametrize(
    "settings", [(), pytest.param((LORA,), marks=pytest.mark.long("the same steps"))], ids=["whole", "lora"]
)
def test_two_steps_train_the_model_and_lose_nothing(settings: tuple[str, ...], start: StartRun) -> None:
    check(start(*BRIEF, *settings, steps=2))


@pytest.mark.long("makes the real model once more")
def test_kernels_that_round_otherwise_do_not_make_it_another_model(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first ids are special tokens that no text has ever had: bfloat16 moves their last states by their length."""

    def as_on_a_gpu(model):
        use_packed_attention(model)
        assert fuse_norms(model) == 61

    monkeypatch.setattr(loading, "use_packed_attention", as_on_a_gpu)
    Policy(made / "model", dtype="bfloat16")


@pytest.mark.long("vLLM starts with a real model")
def test_vllm_samples_it_with_the_log_probs_of_the_trainer(start: StartRun) -> None:
    pytest.importorskip("vllm")
    check(start(*BRIEF, *VLLM, steps=2))
