"""Triton's kernels, run by its interpreter where it is installed, and when they are taken."""

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from asyncrl.rollout.engines.transformers.qwen3 import LayerKernels, TritonKernels, layer_kernels

CPU = torch.device("cpu")
HEADS = (4, 2, 16)
INTERPRETED = """
import torch
from asyncrl.rollout.engines.transformers import qwen3 as kernels

for dtype in (torch.float32, torch.bfloat16):
    found = kernels.layer_kernels(torch.device("cpu"), dtype, (4, 2, 16), 1e-6, kernels._launched)
    assert type(found) is kernels.TritonKernels, dtype
print("the same")
"""


def plainly(kernel: str, grid: tuple[int, int], arguments: dict[str, Any]) -> None:
    """A launch that computes with torch's operations."""
    own = LayerKernels(HEADS[1], 1e-6)
    if kernel == "gate":
        assert grid == (len(arguments["out"]), -(-arguments["size"] // arguments["block"]))
        arguments["out"].copy_(own.gate(arguments["gate_up"]))
    else:
        rotation = (arguments["cos"], arguments["sin"])
        own.place(arguments["heads"], arguments["norms"], rotation, arguments["cache"], arguments["cells"])


def wrongly(kernel: str, grid: tuple[int, int], arguments: dict[str, Any]) -> None:
    plainly(kernel, grid, arguments)
    if kernel == "place":
        arguments["cache"][arguments["cells"][0]] += 1


def never(*_: object) -> None:
    raise RuntimeError("no compiler\nat all")


def test_kernels_are_taken_where_they_give_what_torch_gives() -> None:
    assert type(layer_kernels(CPU, torch.float32, HEADS, 1e-6, plainly)) is TritonKernels


@pytest.mark.parametrize("launch", [wrongly, never], ids=lambda launch: launch.__name__)
def test_kernels_that_fail_or_are_wrong_are_not_taken_and_a_warning_says_so(launch: Any, caplog: Any) -> None:
    assert type(layer_kernels(CPU, torch.float32, HEADS, 1e-6, launch)) is LayerKernels
    assert "engine.slower" in caplog.text
    assert "gives other values" in caplog.text or "RuntimeError: no compiler" in caplog.text


def test_a_cpu_has_torchs_operations() -> None:
    assert type(layer_kernels(CPU, torch.float32, HEADS, 1e-6)) is LayerKernels


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_tritons_kernels_give_what_torchs_operations_give() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr + done.stdout
