import pytest
from tests.integration.test_recovery import CHECKPOINTS, STEPS, assert_complete, exits
pytestmark = pytest.mark.timeout(250)
def test_broker_killed_with_ranks(start_run):
    run = start_run(CHECKPOINTS, "trainer.ranks=2", steps=STEPS)
    run.until(lambda: run.steps_done() >= 5)
    run.kill_node("broker-0")
    n = run.steps_done()
    run.until(lambda: run.steps_done() >= n + 3)
    run.kill_node("broker-0")
    print("CODE", run.end().code, run.errors[-600:])
    print("EXITS", exits(run))
    assert_complete(run)
