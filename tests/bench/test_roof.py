"""What a decode step and a training step ask of a GPU, counted on tensors without memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow("benches are programs that start others")
def test_a_decode_step_of_qwen3_is_few_kernels_and_one_read_and_its_head_moves_few_bytes() -> None:
    """Each layer is nine kernels; the head moves half of what it did when every chunk added to its gradient apart."""
    command = [sys.executable, str(ROOT / "bench" / "roof.py"), "--shapes", "qwen3-0.6b", "--rows", "64"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ceilings, decode, head, layers = map(json.loads, done.stdout.splitlines())

    assert ceilings["bandwidth"] == 2.6e12
    assert decode["kernels"] <= 300
    assert decode["reads"] == 1
    assert decode["tokens_per_s"] < decode["limit"], "a ceiling is below the limit"
    assert head["gb"] <= 216
    assert layers["tflop"] > head["tflop"] > 10
