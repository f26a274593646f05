"""Training step of asyncrl's learner, which packs trajectories into micro-batches with a token budget."""

from pathlib import Path

import numpy as np
import ragged

from asyncrl.config.run_file import decode
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingTrajectory


def main(work: ragged.Work) -> ragged.Timed:
    longest = max(map(len, work.completions))
    config = decode(
        {
            "model": {"path": work.model},
            "data": {"train": "unused", "max_prompt_tokens": ragged.PROMPT_TOKENS},
            "sampling": {"max_tokens": longest},
            "schedule": {"group_size": ragged.GROUP_SIZE},
            "trainer": {"max_tokens_per_micro_batch": work.max_tokens},
        }
    )
    trajectories = [
        TrainingTrajectory(
            group_id=place // ragged.GROUP_SIZE,
            prompt_ids=np.array(work.prompt(place), np.int32),
            completion_ids=np.array(completion, np.int32),
            behavior_logprobs=np.array(work.behavior_logprobs(place), np.float32),
            reward=work.rewards[place],
        )
        for place, completion in enumerate(work.completions)
    ]
    learner = Learner(config, Path(work.model))
    return ragged.timed(lambda: learner.train(trajectories), work.steps)


if __name__ == "__main__":
    ragged.print_timed(main(ragged.read_work()))
