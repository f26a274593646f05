"""`asyncrl doctor` makes one check at a time, of what its options name."""

from pathlib import Path

import pytest

from asyncrl.config.config import Config
from asyncrl.node.machine.diagnosis import Diagnosis, Line
from tests.cli.invoke import asyncrl

FOUND = Diagnosis((Line("devices", "cuda", "bad", "none", "torch sees no cuda device: install another"),), is_fit=False)


@pytest.mark.parametrize(
    "arguments", [("--npu", "--role", "trainer"), ("--role", "cook"), ("--npu", "--cluster", "cluster.toml")]
)
def test_contradictory_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert asyncrl("doctor", *arguments).exit_code == 2


def test_a_run_file_is_judged_by_its_own_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def diagnose_run(config: Config, *memory: str) -> Diagnosis:
        assert (config.run.seed, memory) == (5, ("80GB", "1TB"))
        return FOUND

    monkeypatch.setattr("asyncrl.cli.launch.checks.fitness.diagnose_run", diagnose_run)
    (tmp_path / "run.toml").write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    result = asyncrl(
        "doctor", str(tmp_path / "run.toml"), "--set", "seed=5", "--device-memory", "80GB", "--host-memory", "1TB"
    )
    assert result.exit_code == 1
    assert "torch sees no cuda device" in result.output


def test_a_run_file_is_not_asked_together_with_other_checks(tmp_path: Path) -> None:
    assert "give one of them" in asyncrl("doctor", str(tmp_path / "run.toml"), "--npu").stderr
    assert "are for CONFIG" in asyncrl("doctor", "--set", "seed=5").stderr
