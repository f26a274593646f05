"""Episodes whose environment shows pictures, sampled by the built-in engine and scored by the trainer."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch

from asyncrl.data.images import describe
from asyncrl.engine import PolicyTurn
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.environment import Answer, TaskInput
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, SampledTrajectory
from asyncrl.episodes.steps import EpisodeSteps, ObservationBudget
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import FROM_NOTHING, Prompt, Sampling, Trajectory, Unit
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.results import to_put_item
from asyncrl.trainer.loop.fetching import contents_of
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.pictures import TrainingImage
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.conftest import draw_picture, make_vision_model
from tests.episodes.stage import StagedEnvironments

CPU = torch.device("cpu")
PROMPT = draw_picture(16, 16, seed=9)
PICTURES = [draw_picture(16 + 8 * number, 16, seed=number) for number in range(3)]


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def path(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_vision_model(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def engine(path: Path) -> TransformersEngine:
    return TransformersEngine.load(str(path), slots=2, max_tokens_per_slot=256)


def picture(content: bytes) -> dict[str, Any]:
    return {"type": "image", "data": content}


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]}


class Showing:
    """Environment that shows a picture at its reset if it is to, and one after each of two turns."""

    def __init__(self, *, at_reset: bool = False, restarts: bool = False) -> None:
        self.at_reset, self.restarts = at_reset, restarts
        self.num_turns = 0

    def reset(self, task: TaskInput) -> Answer:
        return Answer(messages=[said(picture(PICTURES[2]), "w5")] if self.at_reset else [])

    def step(self, turn: PolicyTurn) -> Answer:
        self.num_turns += 1
        if self.num_turns == 3:
            return Answer(done=True)
        shown = [said("w3", picture(PICTURES[self.num_turns - 1]), "w4", role="user")]
        return Answer(messages=shown, restart=self.restarts and self.num_turns == 2)


def play(
    engine: TransformersEngine,
    make: Any = Showing,
    *,
    prompt_images: Sequence[bytes] = (),
    history: Literal["as_sampled", "as_template"] = "as_sampled",
) -> tuple[EpisodeRecord, Conversation]:
    content = "".join("<image> " for _ in prompt_images) + "w7 w9"
    prompt = Prompt(chat=[{"role": "user", "content": content}], images=[describe(file) for file in prompt_images])
    pictures = EpisodePictures(PictureLimits(8, 1 << 20), prompt.images, prompt_images)
    conversation = Conversation(
        EpisodeRecord(engine.encode(prompt), images=prompt.images),
        engine.generate,
        engine.boundary(),
        sampling=Sampling(max_tokens=6),
        limits=EpisodeLimits(max_turns=9, max_tokens=220),
        seed=3,
        pictures=pictures,
    )
    environments = StagedEnvironments(make=make)
    player = EpisodeSteps(
        conversation,
        environments.open("run/train/0/0"),
        TaskInput(messages=list(prompt.chat)),
        resume="replay",
        history=history,
        observed=ObservationBudget(100),
    )
    assert asyncio.run(player.play()) == "stop"
    return conversation.record, conversation


def stored(record: EpisodeRecord, conversation: Conversation) -> Trajectory:
    """The episode as a spool has it."""
    sampled = SampledTrajectory(
        prompt_ids=record.prompt_ids,
        completion=record.completion("stop"),
        turns=record.wire_turns(),
        context_ids=record.context_ids(),
        images=record.images(),
        image_files=record.image_files(conversation.pictures),
    )
    lease = Lease(1, 0, [0], "train", Prompt(), Sampling(max_tokens=6), None, max_prompt_tokens=100, expires_in_s=60)
    item = to_put_item(lease, Unit(0, 0), sampled, node="rollout-0", episode=conversation.limits)
    return msgspec.msgpack.decode(item.payload, type=Trajectory)


def trained(trajectory: Trajectory, prompt_files: Sequence[bytes] = ()) -> TrainingTrajectory:
    contents = contents_of(trajectory, prompt_files if trajectory.num_prompt_images else [])
    return TrainingTrajectory(
        group_id=0,
        prompt_ids=np.frombuffer(trajectory.prompt_ids, "<i4"),
        completion_ids=np.frombuffer(trajectory.completion_ids, "<i4"),
        behavior_logprobs=np.frombuffer(trajectory.behavior_logprobs, "<f4"),
        reward=1.0,
        images=[
            TrainingImage(image.digest, content, grid)
            for image, content, grid in zip(trajectory.images, contents, trajectory.grids, strict=True)
        ],
        turns=trajectory.turns,
        context_ids=np.frombuffer(trajectory.context_ids, "<i4"),
    )


def gap(path: Path, one: TrainingTrajectory) -> float:
    policy = Policy(path)
    scored = policy.score(collate([one], device=CPU, processor=policy.processor), temperature=1.0)
    return float((scored.logprobs.detach() - torch.tensor(one.behavior_logprobs)).abs().max())


CASES: dict[str, dict[str, Any]] = {
    "after turns": {},
    "after turns, and in the prompt": {"prompt_images": [PROMPT]},
    "from reset, and in the prompt": {"make": lambda: Showing(at_reset=True), "prompt_images": [PROMPT]},
    "after a restart": {"make": lambda: Showing(restarts=True), "prompt_images": [PROMPT]},
    "as the template renders them": {"history": "as_template", "prompt_images": [PROMPT]},
}


@pytest.mark.parametrize("case", CASES)
def test_trainer_and_engine_agree_on_turns_with_pictures_between_them(
    path: Path, engine: TransformersEngine, case: str
) -> None:
    prompt_files = CASES[case].get("prompt_images", [])
    trajectory = stored(*play(engine, **CASES[case]))
    assert sum(turn.num_images for turn in trajectory.turns) >= 2
    assert gap(path, trained(trajectory, prompt_files)) <= 1e-4


def test_with_other_pictures_of_the_same_size_they_do_not_agree(path: Path, engine: TransformersEngine) -> None:
    one = trained(stored(*play(engine)))
    for place, image in enumerate(one.images):
        other = draw_picture(16 + 8 * place, 16, seed=50 + place)
        swapped = TrainingImage(hashlib.sha256(other).digest(), other, image.grid)
        images = [*one.images[:place], swapped, *one.images[place + 1 :]]
        assert gap(path, replace(one, images=images)) > 1e-3


def test_each_file_is_stored_once_and_the_prompt_s_not_at_all(engine: TransformersEngine) -> None:
    class Repeating(Showing):
        def step(self, turn: PolicyTurn) -> Answer:
            answer = super().step(turn)
            return Answer(messages=[said(picture(PICTURES[0]), picture(PROMPT), "w4")], done=answer.done)

    trajectory = stored(*play(engine, Repeating, prompt_images=[PROMPT]))
    assert [turn.num_images for turn in trajectory.turns] == [0, 2, 2]
    assert list(map(bytes, trajectory.image_files)) == [PICTURES[0]]


def test_a_context_that_follows_nothing_has_the_pictures_of_the_prompt_again(engine: TransformersEngine) -> None:
    record, conversation = play(engine, lambda: Showing(at_reset=True), prompt_images=[PROMPT])
    assert record.turns[0].parent == FROM_NOTHING
    assert conversation.pictures.files(record.turns[0].images) == (PROMPT, PICTURES[2])
    trajectory = stored(record, conversation)
    assert trajectory.num_prompt_images == 0, "nobody has read the prompt itself"
    assert list(map(bytes, trajectory.image_files)) == [PROMPT, PICTURES[2], PICTURES[0], PICTURES[1]]
