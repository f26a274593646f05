"""vLLM loads an exported model and gives the greedy answers of plain transformers."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("vllm")

from tests.conftest import make_model
from tests.integration.conftest import ToyRun

pytestmark = pytest.mark.slow("whole runs of real processes")

VLLM = ("rollout.vllm.enforce_eager=true", "rollout.vllm.kv_cache_bytes=33554432")
TOKENS = 24


def asyncrl(*arguments: object) -> str:
    command = [sys.executable, "-m", "asyncrl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def exported(start_shared_run: Callable[..., ToyRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model of a run whose steps are large enough to change the greedy tokens."""
    folder = tmp_path_factory.mktemp("exported")
    make_model(folder / "base", head_dim=32)  # Heads that vLLM can decode on a CPU.
    run = start_shared_run(f'model.path="{folder / "base"}"', "trainer.lr=0.01", 'data.held_out=""', steps=3).end()
    assert run.code == 0, run.errors
    asyncrl("export", run.directory.path, "-o", folder / "model")
    return folder / "model"


def by_transformers(model_path: Path, prompts: list[str]) -> list[str]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    texts = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt).input_ids])
        written = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0, ids.shape[1] :]
        texts.append(tokenizer.decode(written, skip_special_tokens=True))
    return texts


@pytest.mark.long("a whole run, and vLLM starts")
def test_vllm_loads_the_export_and_answers_as_transformers_does(exported, toy):
    out = exported.parent / "answers.parquet"
    asked = ["--data", toy / "held_out.parquet", "--max-tokens", TOKENS, "--reward", f"{toy}/reward.py:count_of_a"]
    settings = [part for setting in VLLM for part in ("--set", setting)]
    asyncrl("eval", exported, *asked, "--engine", "vllm", *settings, "--out", out, "--json")

    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 16
    assert [row["completion"] for row in rows] == by_transformers(exported, [row["prompt"] for row in rows])
    base = by_transformers(exported.parent / "base", [row["prompt"] for row in rows])
    assert [row["completion"] for row in rows] != base
