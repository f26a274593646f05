"""What a child is started with: threads before OpenMP looks, devices before anything does."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.cli.launch import children
from asyncrl.cli.launch.children import role_process
from asyncrl.config.sections import Config, Data, Model, Rollout, Trainer
from asyncrl.messages import Role

CONFIG = Config(model=Model(path="m"), data=Data(train="t"), rollout=Rollout(threads=3), trainer=Trainer(threads=2))


@pytest.mark.parametrize(("role", "threads"), [("rollout", "3"), ("trainer", "2"), ("reward", "1"), ("broker", "1")])
def test_threads_devices_and_options_reach_the_child(monkeypatch, tmp_path: Path, role: Role, threads: str):
    shell = tmp_path / "python"
    shell.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES $@"\n')
    shell.chmod(0o755)
    monkeypatch.setattr(children.sys, "executable", str(shell))
    child = role_process(
        role, "gpu-1", CONFIG, tmp_path / "log", "--broker", "tcp://x", devices={"CUDA_VISIBLE_DEVICES": "4,5"}
    )

    async def scene() -> int:
        await child.start()
        return await child.wait()

    assert asyncio.run(scene()) == 0
    assert child.last_line() == f"{threads} 4,5 -m asyncrl.cli.node --role {role} --name gpu-1 --broker tcp://x"
