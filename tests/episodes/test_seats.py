"""Episodes of several seats: each reads its own context, and has its own rewards."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.data.images import describe
from asyncrl.engine import ChatMessage, PolicyTurn
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.environment import Answer, EnvironmentEpisode, Reward, Score, TaskInput
from asyncrl.episodes.episode import Attempt, Episode
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, ResumedEpisode, SampledTrajectory, read
from asyncrl.episodes.steps import EpisodeSteps, ObservationBudget
from asyncrl.errors import EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Sampling, Turn
from tests.conftest import draw_picture
from tests.episodes.stage import StagedEnvironments, WordBoundary, WordEngine, ids, words

UNSAID = Score()
LIMITS = EpisodeLimits(max_turns=8, max_tokens=200, pictures=PictureLimits(9, 100_000))
TASK = TaskInput(messages=[{"role": "user", "content": "play"}])


def user(text: str) -> list[ChatMessage]:
    return [{"role": "user", "content": text}]


@dataclass
class Game:
    """Answers from a script, whatever is said."""

    answers: Sequence[Answer]
    last: Score
    heard: list[tuple[int, str]] = field(default_factory=list)

    def reset(self, task: TaskInput) -> Answer:
        self.left = list(self.answers)
        return self.left.pop(0)

    def step(self, said: PolicyTurn) -> Answer:
        self.heard.append((said.seat, said.text))
        return self.left.pop(0)

    def score(self) -> Score:
        return self.last

    def snapshot(self) -> bytes:
        return bytes([len(self.left)])

    def restore(self, task: TaskInput, state: bytes) -> None:
        self.left = list(self.answers[len(self.answers) - state[0] :])


DUEL = (
    Answer(),
    Answer(messages=user("it said a"), seat=1),
    Answer(messages=user("it said b"), reward=0.5),
    Answer(messages=user("it said c"), reward=[0.25, -0.25], seat=1),
    Answer(done=True, reward=[1.0, -1.0]),
)
"""Two turns of each of two seats."""


@dataclass
class Stage:
    """Plays a game to its end."""

    answers: Sequence[Answer] = DUEL
    score: Score = UNSAID
    seats: int = 2
    history: Any = "as_sampled"
    resume: Any = "replay"
    lose_at: int = 0
    prefix: SampledTrajectory | None = None
    pictures: EpisodePictures = field(default_factory=lambda: EpisodePictures(LIMITS.pictures))

    def __post_init__(self) -> None:
        self.games: list[Game] = []
        self.engine = WordEngine(lambda before: f"(t) said {before.split().count('<policy>')}")
        self.stored: list[SampledTrajectory] = []
        self.started_over: list[str] = []

    def play(self) -> SampledTrajectory:
        environments = StagedEnvironments(self._game, resume=self.resume, lose_at=self.lose_at)
        episode = Episode(
            environments,
            TASK,
            ids("<user> play <policy>"),
            self._begin,
            pictures=self.pictures,
            written=self.engine.written,
            episode_s=100.0,
            resumed=read(self.prefix) if self.prefix else None,
            can_resume=True,
            on_started_over=lambda num, reason: self.started_over.append(reason),
        )
        self.episode = episode
        return asyncio.run(episode.run())

    def _game(self) -> Game:
        self.games.append(Game(self.answers, self.score))
        return self.games[-1]

    def _begin(self, environment: EnvironmentEpisode, resumed: ResumedEpisode | None) -> Attempt:
        answered = resumed.finished[: resumed.state.num_answered] if resumed else []
        conversation = Conversation(
            EpisodeRecord(ids("<user> play <policy>"), answered, self.pictures.prompt),
            self.engine.sample,
            WordBoundary(),
            sampling=Sampling(10),
            limits=replace(LIMITS, seats=self.seats),
            pictures=self.pictures.with_shown(resumed.shown if resumed else {}),
            on_turn=self._store,
        )
        player = EpisodeSteps(
            conversation,
            environment,
            TASK,
            resume=self.resume,
            history=self.history,
            observed=ObservationBudget(1000),
            resumed=resumed,
        )
        return Attempt(conversation, player)

    def _store(self) -> None:
        if written := self.episode.written():
            self.stored.append(written)


def test_each_seat_reads_what_the_environment_says_to_it_and_what_it_said() -> None:
    stage = Stage()
    played = stage.play()
    assert [words(request.prompt_ids) for request in stage.engine.requests] == [
        "<user> play <policy>",
        "<user> it said a <policy>",
        "<user> play <policy> (t) said 1 <user> it said b <policy>",
        "<user> it said a <policy> (t) said 1 <user> it said c <policy>",
    ]
    assert [(turn.seat, turn.parent) for turn in played.turns] == [(0, FROM_PROMPT), (1, FROM_NOTHING), (0, 0), (1, 1)]
    assert stage.games[0].heard == [(0, "(t) said 1"), (1, "(t) said 1"), (0, "(t) said 2"), (1, "(t) said 2")]


def test_a_number_rewards_the_seat_that_has_spoken_and_a_list_the_last_turn_of_each() -> None:
    played = Stage().play()
    assert [turn.reward for turn in played.turns] == [0.0, 0.5 - 0.25, 0.25 + 1.0, -1.0]
    assert played.scores == {"seat_0": 1.25, "seat_1": -0.75, "silent_seats": 0.0}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [([3.0, -3.0], [3.0, -3.0]), (2.0, [2.0, 2.0]), (None, [1.25, -0.75])],
    ids=["one for each", "the same for all", "that of the steps"],
)
def test_score_has_the_last_word_on_each_seat(reward: Reward | None, expected: list[float]) -> None:
    played = Stage(score=Score(reward=reward)).play()
    assert [played.scores["seat_0"], played.scores["seat_1"]] == expected


def test_a_seat_that_never_spoke_has_no_reward_and_is_counted() -> None:
    played = Stage([Answer(), Answer(done=True, reward=[-1.0, 1.0])]).play()
    assert played.scores == {"seat_0": -1.0, "silent_seats": 1.0}


def test_another_seat_may_begin_and_the_prompt_is_still_that_of_seat_0() -> None:
    stage = Stage([Answer(messages=user("propose"), seat=1), Answer(), Answer(done=True)])
    stage.play()
    assert [words(one.prompt_ids) for one in stage.engine.requests] == [
        "<user> propose <policy>",
        "<user> play <policy>",
    ]


def test_a_restart_begins_a_new_context_of_one_seat_alone() -> None:
    anew = Answer(messages=user("anew"), restart=True, seat=1)
    stage = Stage([*DUEL[:3], anew, Answer(messages=user("on")), Answer(done=True)])
    stage.play()
    assert words(stage.engine.requests[3].prompt_ids) == "<user> anew <policy>"
    assert words(stage.engine.requests[4].prompt_ids).endswith("it said b <policy> (t) said 2 <user> on <policy>")


def test_the_chat_template_retells_each_seat_its_own_conversation() -> None:
    """It shows no words in brackets, so every later turn begins a branch."""
    stage = Stage(history="as_template")
    played = stage.play()
    assert [words(request.prompt_ids) for request in stage.engine.requests[2:]] == [
        "<user> play <assistant> said 1 <user> it said b <policy>",
        "<user> it said a <assistant> said 1 <user> it said c <policy>",
    ]
    assert [turn.parent for turn in played.turns] == [FROM_PROMPT, *[FROM_NOTHING] * 3]


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_an_interrupted_episode_goes_on_with_its_seats_and_rewards(turns: int, history: str, resume: str) -> None:
    whole = Stage(history=history, resume=resume)
    expected = whole.play()
    again = Stage(history=history, resume=resume, prefix=whole.stored[turns - 1])
    assert _untimed(again.play().turns) == _untimed(expected.turns)
    assert len(again.engine.requests) == 4 - turns
    assert not again.started_over


def _untimed(turns: Sequence[Turn]) -> list[Turn]:
    return [replace(turn, call_s=0.0) for turn in turns]


@pytest.mark.parametrize(
    ("lose_at", "resume"), [*((call, "replay") for call in range(2, 7)), *((call, "snapshot") for call in range(2, 10))]
)
def test_no_reward_is_given_twice_when_a_worker_is_lost(lose_at: int, resume: str) -> None:
    stage = Stage(resume=resume, lose_at=lose_at)
    assert [turn.reward for turn in stage.play().turns] == [0.0, 0.25, 1.25, -1.0]
    assert len(stage.games) == 2


def test_a_replay_in_which_another_seat_is_to_speak_begins_anew() -> None:
    other = [DUEL[0], Answer(messages=user("it said a")), Answer(done=True)]
    stage = Stage(other, prefix=_stored_after(2))
    assert [turn.seat for turn in stage.play().turns] == [0, 0]
    assert stage.started_over == [": its answer has seat 0 speak, expected the recorded seat 1"]


def _stored_after(turns: int) -> SampledTrajectory:
    stage = Stage()
    stage.play()
    return stage.stored[turns - 1]


REFUSED: dict[str, tuple[Callable[[], Stage], str]] = {
    "unknown seat": (
        lambda: Stage([Answer(), Answer(messages=user("a"), seat=2)]),
        r"step has seat 2 speak, expected 0 .. 1; set environment.seats",
    ),
    "no seats": (
        lambda: Stage([Answer(), Answer(messages=user("a"), seat=1)], seats=1),
        r"step has seat 1 speak, expected 0 .. 0; set environment.seats",
    ),
    "reset": (
        lambda: Stage([Answer(messages=user("a"), seat=7)]),
        r"reset has seat 7 speak, expected 0 .. 1",
    ),
    "nothing to read": (
        lambda: Stage([Answer(), Answer(seat=1)]),
        r"seat 1 is to speak and has read nothing",
    ),
    "too many rewards": (
        lambda: Stage([Answer(), Answer(done=True, reward=[1.0, 2.0, 3.0])]),
        r"step gives 3 rewards, expected 2, one for each of environment.seats",
    ),
    "too many scores": (
        lambda: Stage([Answer(), Answer(done=True)], Score(reward=[1.0])),
        r"score gives 1 rewards, expected 2",
    ),
    "too early": (
        lambda: Stage([Answer(), Answer(reward=[0.0, 1.0])]),
        r"step gives seat 1 the reward 1 before it has spoken; give it later, or from score",
    ),
    "a metric's name": (
        lambda: Stage([Answer(), Answer(done=True)], Score(metrics={"seat_1": 1.0})),
        r"the environment gives a metric 'seat_1', which an episode of several seats has itself; rename it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_seats_cannot_do_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(EnvironmentFailed, match=sentence) as refused:
        make().play()
    assert not refused.value.retryable


def test_each_seat_reads_the_pictures_that_are_shown_to_it() -> None:
    prompt, shown, last = (draw_picture(16, 16, seed=seed) for seed in range(3))
    images = [describe(file) for file in (prompt, shown, last)]
    see = {"type": "text", "text": "see"}
    answers = (
        Answer(),
        Answer(messages=[{"role": "user", "content": [see, {"type": "image", "data": shown}]}], seat=1),
        Answer(messages=[{"role": "user", "content": [see, {"type": "image", "data": last}]}]),
        Answer(messages=user("and now"), seat=1),
        Answer(done=True),
    )
    stage = Stage(answers, pictures=EpisodePictures(LIMITS.pictures, images[:1], [prompt]))
    played = stage.play()
    assert [request.images for request in stage.engine.requests] == [(prompt,), (shown,), (prompt, last), (shown,)]
    assert [(turn.seat, turn.num_images) for turn in played.turns] == [(0, 0), (1, 1), (0, 1), (1, 0)]
    assert (played.images, played.image_files) == (images, [shown, last])
