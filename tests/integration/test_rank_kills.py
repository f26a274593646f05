"""A trainer that loses ranks ends with the weights and moments of one that lost none."""

from pathlib import Path

import pytest

from tests.integration.rank_kills import lose_ranks

pytestmark = pytest.mark.slow("whole runs of real processes")


@pytest.mark.long("two minutes")
def test_a_trainer_that_loses_ranks_ends_with_the_weights_and_moments_of_one_that_lost_none(
    toy: Path, tmp_path: Path
) -> None:
    """With this seed: a further rank in a step, the first in a publish, a further one in the load after it."""
    figures = lose_ranks(tmp_path, toy, kills=3, ranks=2, resumed_by=3, seed=1)
    assert figures["kills"] == {"shard.loading": 1, "shard.training": 1, "trainer.staged": 1}
