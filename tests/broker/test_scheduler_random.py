"""Whatever happens in whatever order: the promises hold at every step, and the run ends when the faults do."""

from random import Random

from hypothesis import event, given, settings

from asyncrl.config import Config

from .chaos import CONFIGS, LENGTHS, SEEDS, Chaos, check, check_promises, run_to_the_end, start_all
from .driver import Cluster


@settings(max_examples=300, deadline=None)
@given(config=CONFIGS, num_chaotic=LENGTHS, seed=SEEDS)
def test_promises_hold_in_any_order_and_the_run_ends_once_faults_stop(
    config: Config, num_chaotic: int, seed: int
) -> None:
    dice = Random(seed)
    cluster = Cluster(config, num_held_out=2)
    start_all(cluster)
    faults = Chaos(cluster)
    for _ in range(num_chaotic):
        if not cluster.is_over:
            faults.act(dice)
            check(cluster)
    run_to_the_end(cluster, dice)
    for kind in {happened.kind for happened in cluster.events}:
        event(kind)
    check_promises(cluster)
