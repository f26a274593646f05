"""A third engine as a host writes it: a class that is made from the configuration, and what is known of it before."""

from asyncrl.config.config import Config
from asyncrl.config.engines import EngineEntry
from tests.testing.stepping import SteppingEngine

ENTRY = EngineEntry(
    load=f"{__name__}:ThirdEngine",
    packages=("third-engine",),
    records_masks=False,
    records_routes=False,
    sleeps=False,
    converses=False,
)


class ThirdEngine(SteppingEngine):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.slots, self.device_kind = config.rollout.slots, config.rollout.device
