import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.weights.groups.device import (
    BACKENDS,
    STAGED_ON,
    backend_for,
    current,
    device_name,
    device_thread,
    environment,
    installed,
    make_current,
    require,
    staging_device,
    torch_device,
)
from tests.weights.groups.fake_npu import installed_at

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_a_cpu_takes_gloo_asked_or_not() -> None:
    assert [backend_for(asked, "cpu") for asked in ("auto", "gloo")] == ["gloo", "gloo"]


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_a_library_that_cannot_reach_the_weights_is_refused_with_what_is_installed(backend: str) -> None:
    reason = f"weights.backend is '{backend}', which cannot send weights from a cpu device"
    with pytest.raises(ConfigError) as refused:
        backend_for(backend, "cpu")
    assert str(refused.value) == f"{reason} ({installed()}): use 'auto' or 'gloo' or 'shared'"


def test_both_ends_stage_on_the_cpu_unless_a_device_library_is_configured() -> None:
    assert [staging_device(asked) for asked in ("auto", "gloo", "shared")] == [torch.device("cpu")] * 3
    assert STAGED_ON.keys() - {"auto", "shared"} == set(BACKENDS.values())
    for kind, backend in BACKENDS.items():
        assert STAGED_ON[backend] == kind


def test_a_process_stages_on_the_device_it_computes_on_if_the_library_sends_from_there() -> None:
    own = torch.device("cuda", 1)
    assert staging_device("nccl", own) is own
    assert staging_device("gloo", own) == staging_device("auto", own) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"sends from cuda devices, but this process computes on a cpu; set .*'gloo'"):
        staging_device("nccl", torch.device("cpu"))


def test_on_the_cpu_no_device_becomes_current() -> None:
    make_current(torch.device("cpu"))
    with current(torch.device("cpu")), device_thread(torch.device("cpu"), "compute") as thread:
        assert thread.submit(lambda: threading.current_thread().name).result() == "compute_0"


@without_cuda
def test_staging_for_nccl_without_a_gpu_is_refused_before_anything_moves() -> None:
    with pytest.raises(ConfigError, match="sees no cuda device"):
        staging_device("nccl")


def test_weights_on_an_unknown_kind_of_device_are_refused() -> None:
    with pytest.raises(ConfigError, match="'tpu' device cannot be sent; expected one of cpu, cuda, npu"):
        backend_for("auto", "tpu")


@without_cuda
def test_a_kind_of_device_that_is_not_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"torch .* sees no cuda device: install a build of torch .* or use a cpu"):
        backend_for("auto", "cuda")


def test_npu_without_torch_npu_is_one_sentence_that_names_it_and_the_page() -> None:
    with pytest.raises(ConfigError) as refused:
        require("npu")
    assert str(refused.value) == (
        f"npu devices need torch_npu, but torch {version('torch')} is installed, torch_npu is not: install what "
        f"docs/ascend.md lists, and source CANN's set_env.sh"
    )


def test_devices_are_called_as_torch_calls_them() -> None:
    assert [device_name("cpu"), device_name("cuda"), device_name("npu", 3)] == ["cpu", "cuda:0", "npu:3"]
    assert torch_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu:0", "cuda:x", "npu:-1", ""])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a device; expected cpu, cuda:N or npu:N"):
        torch_device(name)


@pytest.mark.parametrize(
    ("kind", "indices", "expected"),
    [
        ("cuda", [0, 3], {"CUDA_VISIBLE_DEVICES": "0,3"}),
        ("npu", [5, 4], {"ASCEND_RT_VISIBLE_DEVICES": "5,4"}),
        ("cuda", [], {"CUDA_VISIBLE_DEVICES": ""}),
        ("cpu", [], {}),
    ],
)
def test_a_process_is_given_devices_in_its_vendors_variable(
    kind: str, indices: list[int], expected: dict[str, str]
) -> None:
    assert environment(kind, indices) == expected


def python(program: str, folder: Path, failing: str) -> str:
    program = f"from asyncrl.weights.groups.device import *; from asyncrl.errors import ConfigError\n{program}"
    command = [sys.executable, "-c", program]
    environment = installed_at(folder, failing)
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow("imports torch in a process of its own")
def test_torch_npu_makes_npu_a_device_with_hccl_the_moment_one_is_needed(tmp_path: Path) -> None:
    """In a process of its own, because the import renames a device of torch for good."""
    program = """
import sys
print("torch" in sys.modules, "torch_npu" in sys.modules)
print(backend_for("auto", "npu"), torch_device("npu:1"))
for name, asked in (("npu:2", "auto"), ("npu", "gloo")):
    try:
        print(torch_device(name), backend_for(asked, "npu"))
    except ConfigError as error:
        print(error)
"""
    first, second, third, fourth = python(program, tmp_path, "whole").splitlines()
    assert first == "False False"
    assert second == "hccl npu:1"
    assert third == "npu:2 does not exist: this process sees 2 npu devices, numbered from 0"
    assert "weights.backend is 'gloo', which cannot send weights from a npu device" in fourth
    assert fourth.endswith("use 'auto' or 'hccl'")


@pytest.mark.slow("imports torch in a process of its own")
def test_a_device_belongs_to_the_threads_that_compute_on_it(tmp_path: Path) -> None:
    """Every thread begins with device 0, and torch refuses a device without an index."""
    program = """
import torch, torch_npu
own = torch_device("npu:1")
with device_thread(own, "compute") as thread:
    print(thread.submit(torch.npu.current_device).result(), torch.npu.current_device())
    thread.submit(torch.zeros, 3, device=own).result()
with current(own):
    stream = torch.npu.Stream()
    torch.zeros(3, device=own)
print(torch.npu.current_device(), stream.device, torch_npu.STRAYS)
print(staging_device("hccl"), staging_device("hccl", own))
zeros = torch.zeros(3, device=own)
print(torch_npu.STRAYS[0])
for refused in (lambda: make_current(torch.device("npu")), lambda: zeros + torch.zeros(3)):
    try:
        refused()
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
"""
    assert python(program, tmp_path, "whole").splitlines() == [
        "1 0",
        "0 npu:1 []",
        "npu:0 npu:1",
        "empty on npu:1 in MainThread, whose device is 0",
        "ValueError Expected a torch.device with a specified index or an integer, but got:npu",
        "RuntimeError Expected all tensors to be on the same device, but found at least two devices, npu:1 and cpu! "
        "(in add)",
    ]


@pytest.mark.slow("imports torch in a process of its own")
def test_torch_npu_without_cann_is_one_sentence_that_names_the_missing_library(tmp_path: Path) -> None:
    program = """
try:
    require("npu")
except ConfigError as error:
    print(error)
"""
    assert python(program, tmp_path, "no_cann") == (
        "torch_npu is installed, but cannot load CANN (libhccl.so: cannot open shared object file: No such file or "
        "directory): install what docs/ascend.md lists, and source CANN's set_env.sh\n"
    )
