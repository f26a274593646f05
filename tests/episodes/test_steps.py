"""The loop of an episode whose environment answers turn by turn."""

import asyncio
import base64
from hashlib import sha256
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes.conversation import MALFORMED, Conversation
from asyncrl.episodes.environment import Answer, EnvironmentDiverged, Resume, TaskInput
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, EpisodeState, ResumedEpisode, as_sampled, read
from asyncrl.episodes.steps import EpisodeSteps, ObservationBudget
from asyncrl.errors import EnvironmentFailed
from asyncrl.messages.trajectory import Sampling
from tests.conftest import draw_picture
from tests.episodes.stage import Counter, StagedEnvironments, WordBoundary, WordEngine, ids

WHOLE = ObservationBudget(10_000)
"""Leaves every answer of these tests as it is."""
TASK = TaskInput(messages=[{"role": "user", "content": "how many"}], answer="3")


def steps(
    environments: StagedEnvironments,
    resumed: ResumedEpisode | None = None,
    max_tokens: int = 100,
    record: EpisodeRecord | None = None,
    observed: ObservationBudget = WHOLE,
) -> EpisodeSteps:
    limits = EpisodeLimits(max_turns=8, max_tokens=max_tokens, pictures=PictureLimits(2, 100_000))
    conversation = Conversation(
        record or a_record(),
        WordEngine(lambda before: f"turn {before.split().count('<policy>')}").sample,
        WordBoundary(),
        sampling=Sampling(10),
        limits=limits,
        pictures=EpisodePictures(limits.pictures, shown=resumed.shown if resumed else None),
    )
    environment = environments.open("run/train/0/0")
    return EpisodeSteps(conversation, environment, TASK, resume=environments.resume, resumed=resumed, observed=observed)


def a_record() -> EpisodeRecord:
    return EpisodeRecord(ids("how many <policy>"))


def play(player: EpisodeSteps) -> str:
    return asyncio.run(player.play())


def test_a_replay_passes_through_the_recorded_turns_and_then_samples() -> None:
    first, second = a_record(), a_record()
    assert play(steps(StagedEnvironments(), record=first)) == "stop"
    turns = first.turns
    resumed = ResumedEpisode(state=EpisodeState(num_finished=2), finished=turns[:2])
    again = steps(StagedEnvironments(), resumed, record=second)
    replaying = [again.is_replaying]
    assert play(again) == "stop"
    assert [*replaying, again.is_replaying] == [True, False]
    assert [turn.text for turn in second.turns] == [turn.text for turn in turns]


def test_an_observation_that_differs_by_one_token_is_noticed() -> None:
    first = a_record()
    play(steps(StagedEnvironments(), record=first))
    turns = first.turns
    turns[1].context_ids = [*turns[1].context_ids[:-1], turns[1].context_ids[0]]
    resumed = ResumedEpisode(state=EpisodeState(num_finished=2), finished=turns[:2])
    with pytest.raises(EnvironmentDiverged, match="4 tokens after turn 0, expected the 4 recorded ones"):
        play(steps(StagedEnvironments(), resumed))


def test_the_state_has_a_snapshot_of_the_last_answered_turn() -> None:
    player = steps(StagedEnvironments(resume="snapshot"))
    play(player)
    assert (player.state.num_finished, player.state.num_answered, player.state.snapshot) == (3, 2, b"1")
    answer = player.state.answer
    assert answer is not None
    assert answer.messages == [{"role": "tool", "content": "left 1"}]


@pytest.mark.parametrize(
    ("cut", "shown"),
    [
        ("left", "[... 344 characters left out ...] w86 w87 w88 w89 w90 w91 w92 w93 w94 w95 w96 w97 w98 w99"),
        ("right", "w00 w01 w02 w03 w04 w05 w06 w07 w08 w09 w10 w11 w12 w13 [... 344 characters left out ...]"),
        ("middle", "w00 w01 w02 w03 w04 w05 w06 [... 344 characters left out ...] w93 w94 w95 w96 w97 w98 w99"),
    ],
)
def test_a_long_answer_is_cut_to_its_tokens_and_says_so(cut: Any, shown: str) -> None:
    message = {"role": "tool", "content": " ".join(f"w{number:02}" for number in range(100))}
    short = {"role": "tool", "content": "a few words"}
    fitted, same = ObservationBudget(20, cut).fitted([message, short], WordBoundary())
    assert len(WordBoundary().after([fitted], [])) <= 20 + len(WordBoundary().after([{**message, "content": ""}], []))
    assert " ".join(fitted["content"].split()) == shown
    assert same == short


def test_the_policy_reads_of_an_answer_what_its_budget_leaves() -> None:
    class Verbose(Counter):
        def step(self, said: PolicyTurn) -> Answer:
            return replace(super().step(said), messages=[{"role": "tool", "content": "word " * 1000}])

    record = a_record()
    player = steps(StagedEnvironments(make=Verbose), record=record, observed=ObservationBudget(12))
    assert play(player) == "stop"
    assert all(len(turn.context_ids) <= 14 for turn in record.turns)
    assert "characters left out" in record.turns[1].observation


def test_a_policy_that_writes_calls_which_cannot_be_read_ends_its_episode() -> None:
    class Breaking(WordBoundary):
        def said(self, token_ids: Any, finish_reason: Any, tools: str = "") -> PolicyTurn:
            broken = CalledTool(name="", arguments={}, problem="?", fault="json")
            other = CalledTool(name="look", arguments={}, fault="name")
            sound = CalledTool(name="add", arguments={})
            return replace(super().said(token_ids, finish_reason), tool_calls=[broken, sound, other])

    record = a_record()
    conversation = Conversation(
        record,
        WordEngine(lambda before: "x").sample,
        Breaking(),
        sampling=Sampling(10),
        limits=EpisodeLimits(max_turns=8, max_tokens=100, max_malformed_calls=3),
    )
    environment = StagedEnvironments().open("run/train/0/0")
    player = EpisodeSteps(conversation, environment, TASK, resume="replay", tools="[{}]", observed=WHOLE)
    assert play(player) == "length"
    assert len(record.turns) == 2
    metrics = asyncio.run(player.score()).metrics
    assert {name: metrics[name] for name in MALFORMED if metrics[name]} == {
        "malformed_calls": 4.0,
        "malformed_json": 2.0,
        "malformed_name": 2.0,
    }


def test_a_first_observation_that_leaves_no_room_is_a_final_failure() -> None:
    class Verbose(Counter):
        def reset(self, task: TaskInput) -> Answer:
            return Answer(messages=[{"role": "user", "content": "word " * 20}])

    with pytest.raises(EnvironmentFailed, match="leaves no room for a turn") as refused:
        play(steps(StagedEnvironments(make=Verbose), max_tokens=20))
    assert not refused.value.retryable


RED, BLUE = (draw_picture(16, 16, seed=seed) for seed in range(2))


class Painter(Counter):
    """Shows the pictures of a list, one after each turn."""

    files: ClassVar[list[bytes]] = [RED, BLUE]

    def reset(self, task: TaskInput) -> Answer:
        self.left = len(self.files) + 1
        return Answer()

    def step(self, said: PolicyTurn) -> Answer:
        answer = super().step(said)
        if answer.done:
            return answer
        file = self.files[len(self.files) - self.left]
        part = {"type": "image", "data": base64.b64encode(file).decode()}
        return replace(answer, messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])


def test_what_an_environment_shows_is_in_the_turns_and_in_the_next_requests() -> None:
    record, engine = a_record(), WordEngine(lambda before: f"seen {before.count('<picture-16>')}")
    conversation = Conversation(
        record,
        engine.sample,
        WordBoundary(),
        sampling=Sampling(10),
        limits=EpisodeLimits(max_turns=8, max_tokens=100),
    )
    environment = StagedEnvironments(make=Painter).open("run/train/0/0")
    assert play(EpisodeSteps(conversation, environment, TASK, resume="replay", observed=WHOLE)) == "stop"
    assert [turn.text for turn in record.turns] == ["seen 0", "seen 1", "seen 2"]
    assert [request.images for request in engine.requests] == [(), (RED,), (RED, BLUE)]
    assert record.turns[1].observation.startswith("<user> see <picture-16>")


def test_a_replay_that_shows_another_picture_of_the_same_size_is_noticed() -> None:
    first = a_record()
    play(steps(StagedEnvironments(make=Painter), record=first))
    turns = first.turns
    shown = {sha256(file).digest(): file for file in (RED, BLUE)}
    resumed = ResumedEpisode(state=EpisodeState(num_finished=2), finished=turns[:2], shown=shown)

    class Repainter(Painter):
        files: ClassVar[list[bytes]] = [BLUE, RED]

    assert play(steps(StagedEnvironments(make=Painter), resumed)) == "stop"
    with pytest.raises(EnvironmentDiverged, match="4 tokens and other pictures after turn 0, expected the 4 recorded"):
        play(steps(StagedEnvironments(make=Repainter), resumed))


def test_a_snapshot_has_the_digests_of_the_pictures_of_its_answer() -> None:
    player = steps(StagedEnvironments(make=Painter, resume="snapshot"))
    play(player)
    assert player.state.answer is not None
    (message,) = player.state.answer.messages
    assert message["content"][1]["digest"] == sha256(BLUE).hexdigest()
    assert len(msgspec.msgpack.encode(player.state)) < 400


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
def test_an_episode_that_goes_on_elsewhere_has_the_pictures_of_its_stored_turns(resume: Resume) -> None:
    limits = EpisodeLimits(max_turns=2, max_tokens=100)
    first, pictures = a_record(), EpisodePictures(limits.pictures)
    conversation = Conversation(
        first,
        WordEngine(lambda before: f"seen {before.count('<picture-16>')}").sample,
        WordBoundary(),
        sampling=Sampling(10),
        limits=limits,
        pictures=pictures,
    )
    environments = StagedEnvironments(make=Painter, resume=resume)
    player = EpisodeSteps(conversation, environments.open("one"), TASK, resume=resume, observed=WHOLE)
    assert play(player) == "length"
    stored = as_sampled(first, [], player.state, pictures)
    assert stored is not None
    assert stored.image_files == [RED, BLUE], "that of the answer to the last turn, too"

    resumed, engine = read(stored), WordEngine(lambda before: f"seen {before.count('<picture-16>')}")
    record = EpisodeRecord(first.prompt_ids, resumed.finished[: resumed.state.num_answered])
    elsewhere = Conversation(
        record,
        engine.sample,
        WordBoundary(),
        sampling=Sampling(10),
        limits=EpisodeLimits(max_turns=8, max_tokens=100),
        pictures=EpisodePictures(limits.pictures, shown=resumed.shown),
    )
    opened = environments.open("two")
    again = EpisodeSteps(elsewhere, opened, TASK, resume=resume, observed=WHOLE, resumed=resumed)
    assert play(again) == "stop"
    assert [request.images for request in engine.requests] == [(RED, BLUE)]
    assert [turn.text for turn in record.turns] == ["seen 0", "seen 1", "seen 2"]
    assert ("restore" in opened.calls) == (resume == "snapshot")


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"no picture", "a picture of 10 bytes cannot be read"),
        (draw_picture(64, 64)[:-900], "a picture is damaged"),
        (draw_picture(400, 400), r"more than environment.picture_bytes = 100,000"),
    ],
)
def test_a_picture_that_cannot_be_shown_is_a_final_failure_of_the_environment(file: bytes, problem: str) -> None:
    class Careless(Painter):
        files: ClassVar[list[bytes]] = [file]

    with pytest.raises(EnvironmentFailed, match=f"environment's answer cannot be shown: .*{problem}") as refused:
        play(steps(StagedEnvironments(make=Careless)))
    assert not refused.value.retryable


def test_more_pictures_than_an_episode_may_have_end_it_with_its_reward() -> None:
    """They depend on what the policy looks at, so such an episode is an outcome as one that is too long."""

    class Album(Painter):
        files: ClassVar[list[bytes]] = [RED, BLUE, draw_picture(8, 8), RED]

        def step(self, said: PolicyTurn) -> Answer:
            return replace(super().step(said), reward=0.5)

    record = a_record()
    assert play(steps(StagedEnvironments(make=Album), record=record)) == "length"
    assert [turn.reward for turn in record.turns] == [0.5] * 3


def test_a_text_beside_a_picture_is_cut_and_the_picture_is_not() -> None:
    part = {"type": "image", "digest": "00", "width": 16, "height": 16}
    long = {"type": "text", "text": " ".join(f"w{number:02}" for number in range(100))}
    (fitted,) = ObservationBudget(20).fitted([{"role": "user", "content": [part, long]}], WordBoundary())
    assert fitted["content"][0] == part
    assert "[... 344 characters left out ...]" in fitted["content"][1]["text"]


def test_an_episode_that_is_done_before_its_first_turn_is_a_final_failure() -> None:
    class Done(Counter):
        def reset(self, task: TaskInput) -> Answer:
            return Answer(done=True)

    with pytest.raises(EnvironmentFailed, match="done, before the first turn") as refused:
        play(steps(StagedEnvironments(make=Done)))
    assert not refused.value.retryable
