"""Places in the roles where a test can kill a process; see `asyncrl.actor.failpoints`."""

PLACES = (
    "rollout.generated",  # a completion has ended
    "rollout.put",  # ... and was sent to the spool
    "rollout.transferred",  # new weights have arrived
    "rollout.swapped",  # ... and are live
    "spool.appended",  # payloads were written
    "spool.synced",  # ... and are durable
    "broker.decided",  # messages were handled, and nothing was recorded yet
    "broker.committed",  # the records are durable, and no answer was sent yet
    "broker.step_recorded",  # a step has its metrics, and no samples yet
    "reward.judged",  # a verdict is there, and was not sent yet
    "trainer.batch_came",  # a batch has arrived
    "trainer.trained",  # the step was taken
    "trainer.staged",  # a version is staged
    "trainer.checkpoint_partial",  # a checkpoint lacks its manifest
    "trainer.checkpoint_written",  # ... is complete, and was not announced yet
)
SHARD_PLACES = (
    "shard.loading",  # the group is formed, and no model loaded
    "shard.training",  # a step begins on a further rank of the trainer
    "shard.gathering",  # ... a publish
    "shard.copying",  # ... a checkpoint
)
"""Places in the trainer's further ranks, which only a trainer of several has."""

TURN_PLACES = (
    "rollout.asleep",  # an engine's devices are free, and nobody knows
    "rollout.woken",  # ... are its own again
    "trainer.asleep",  # the same of the trainer
    "trainer.woken",
)
"""Places of nodes that share devices."""

EPISODE_PLACES = (
    "rollout.turn_put",  # turns of unfinished episodes were sent to the spool
)
"""Places of runs with an environment."""
