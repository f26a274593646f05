import pytest

from asyncrl.errors import ConfigError
from asyncrl.rollout.conversing import require_seam
from asyncrl.rollout.engine import ConversingEngine
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.testing import FakeEngine


def test_an_engine_with_a_seam_can_hold_a_conversation() -> None:
    engine = FakeEngine()
    assert require_seam(engine) is engine
    assert engine.seam().after([{"role": "user", "content": "one two"}], []) == [3, 3]


def test_an_engine_without_one_is_refused() -> None:
    class Mute:
        """Has none of the methods."""

    with pytest.raises(ConfigError, match="Mute has no seam"):
        require_seam(Mute())  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [TransformersEngine, VllmEngine])
def test_both_engines_can_hold_a_conversation(engine: type) -> None:
    assert issubclass(engine, ConversingEngine)
