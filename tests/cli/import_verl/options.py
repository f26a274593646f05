"""Options of verl that a run cannot do without."""

NEEDED = (
    "actor_rollout_ref.model.path=models/base",
    "data.train_files=train.jsonl",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
)
