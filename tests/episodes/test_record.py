"""A tree of turns whose tokens are kept as they were sampled."""

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from asyncrl.engine import Completion
from asyncrl.episodes.environment import Answer
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits, part_of
from asyncrl.episodes.record import EpisodeRecord, EpisodeState, RecordedTurn, as_sampled, cut, joined, read, recorded
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image, Span, Turn


@st.composite
def completions(draw: st.DrawFn) -> list[Completion]:
    """Completions of one episode: all with masks, or none."""
    has_masks = draw(st.booleans())
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    return [draw(completion(length, has_masks)) for length in lengths]


@st.composite
def completion(draw: st.DrawFn, length: int, has_masks: bool) -> Completion:
    inner = st.lists(st.integers(1, length - 1), unique=True, max_size=2) if length > 1 else st.just([])
    ends = [*sorted(draw(inner)), length]
    versions = draw(st.lists(st.integers(0, 2), min_size=len(ends), max_size=len(ends)))
    spans = [Span(v, start, end) for v, start, end in zip(versions, [0, *ends], ends, strict=False)]
    masks = draw(st.lists(st.integers(1, 3), min_size=length, max_size=length)) if has_masks else []
    return Completion(
        completion_ids=draw(st.lists(st.integers(0, 99), min_size=length, max_size=length)),
        behavior_logprobs=draw(st.lists(st.floats(-9, 0), min_size=length, max_size=length)),
        spans=spans,
        finish_reason="stop",
        generate_s=1.0,
        mask_counts=masks,
        mask_ids=list(range(sum(masks))),
    )


def by_token(part: Completion) -> list[tuple[int, float, int, tuple[int, ...]]]:
    """Id, log-prob, policy version and mask of each token."""
    versions = [span.policy_version for span in part.spans for _ in range(span.start, span.end)]
    ends = [sum(part.mask_counts[: place + 1]) for place in range(len(part.mask_counts))]
    masks = [tuple(part.mask_ids[start:end]) for start, end in pairwise([0, *ends])] or [()] * len(versions)
    return list(zip(part.completion_ids, part.behavior_logprobs, versions, masks, strict=True))


@given(completions())
def test_joined_completions_keep_what_belongs_to_each_token(parts: list[Completion]) -> None:
    whole = joined(parts, "length")
    assert by_token(whole) == [token for part in parts for token in by_token(part)]
    assert (whole.finish_reason, whole.generate_s) == ("length", len(parts))
    assert whole.spans[0].start == 0
    assert all(
        before.end == after.start and before.policy_version != after.policy_version
        for before, after in pairwise(whole.spans)
    ), "spans of one version that meet are one"


@given(completions())
def test_what_was_joined_is_cut_into_the_same_parts(parts: list[Completion]) -> None:
    whole = joined(parts, "unfinished")
    again = cut(whole, [len(part.completion_ids) for part in parts])
    assert [by_token(part) for part in again] == [by_token(part) for part in parts]
    assert all(part.spans[0].start == 0 for part in again)
    assert joined(again, "unfinished") == whole


FILES = {bytes([number]) * 32: f"file {number}".encode() for number in range(1, 5)}
A, B, C, OF_PROMPT = (Image(digest, 8, 8, len(file)) for digest, file in FILES.items())
GRIDS = {A: (1, 1, 1), B: (1, 2, 2), C: (1, 3, 3), OF_PROMPT: (1, 4, 4)}


def pictured() -> tuple[EpisodeRecord, EpisodePictures]:
    """
    Pictures of the contexts of turns, after a prompt with one::

        prompt D ── 0 ── 1: A ── 3: B C
                     └── 2: B
        nothing ──── 4: D A
    """
    record = EpisodeRecord([100], images=[OF_PROMPT])
    shown: list[tuple[int, list[Image]]] = [(FROM_PROMPT, []), (0, [A]), (0, [B]), (1, [B, C])]
    for parent, images in [*shown, (FROM_NOTHING, [OF_PROMPT, A])]:
        read = [*record.images_through(parent), *images]
        completion = replace(written(1), grids=[GRIDS[image] for image in read], processor="v1")
        record.add(RecordedTurn(parent, [9] * max(1, len(images)), completion, images=images))
    return record, EpisodePictures(PictureLimits(9, 99), [OF_PROMPT], [FILES[OF_PROMPT.digest]], FILES)


def test_the_policy_has_read_the_pictures_of_its_path() -> None:
    record, _ = pictured()
    assert [record.images_through(place) for place in range(5)] == [
        [OF_PROMPT],
        [OF_PROMPT, A],
        [OF_PROMPT, B],
        [OF_PROMPT, A, B, C],
        [OF_PROMPT, A],
    ]


def test_an_episode_has_the_pictures_of_its_prompt_and_then_those_of_its_contexts_with_their_grids() -> None:
    record, pictures = pictured()
    assert record.images() == [OF_PROMPT, A, B, B, C, OF_PROMPT, A]
    assert [turn.num_images for turn in record.wire_turns()] == [0, 1, 1, 2, 2]
    whole = record.completion("stop")
    assert whole.grids == [GRIDS[image] for image in record.images()]
    assert whole.processor == "v1"
    assert record.image_files(pictures) == [FILES[image.digest] for image in (A, B, C)]


def test_where_nobody_reads_the_prompt_its_pictures_are_those_of_the_contexts() -> None:
    whole, pictures = pictured()
    record = EpisodeRecord([100], [replace(whole.turns[4])], [OF_PROMPT])
    assert record.images() == [OF_PROMPT, A]
    assert record.completion("stop").grids == [GRIDS[OF_PROMPT], GRIDS[A]]
    assert record.image_files(pictures) == [FILES[OF_PROMPT.digest], FILES[A.digest]]


def test_a_stored_episode_is_read_with_its_pictures() -> None:
    record, pictures = pictured()
    answer = Answer(messages=[{"role": "user", "content": [part_of(C)]}])
    state = EpisodeState(num_finished=2, num_answered=2, answer=answer, rewards=[0.0, 0.0])
    begun = EpisodeRecord([100], record.turns[:2], [OF_PROMPT])
    stored = as_sampled(begun, [], state, pictures)
    assert stored is not None
    assert stored.image_files[0] == FILES[A.digest]

    resumed = read(stored)
    assert [turn.images for turn in resumed.finished] == [[], [A]]
    assert [turn.completion.grids for turn in resumed.finished] == [[GRIDS[OF_PROMPT]], [GRIDS[OF_PROMPT], GRIDS[A]]]
    assert resumed.state.answer == answer
    again = pictures.with_shown({sha256(file).digest(): file for file in stored.image_files})
    assert set(again.shown.values()) == {FILES[image.digest] for image in (A, B, C)}, "the answer's picture, too"


def written(*token_ids: int) -> Completion:
    return Completion(
        completion_ids=list(token_ids),
        behavior_logprobs=[-1.0] * len(token_ids),
        spans=[Span(0, 0, len(token_ids))],
        finish_reason="stop",
        generate_s=1.0,
    )


def tree() -> EpisodeRecord:
    """
    Turns and the ids of their context (tens) and of the policy (units)::

        prompt 100 ── 0: 1 ── 1: 10, 2 ── 3: 30, 4
                        └──── 2: 20, 3
        nothing ───── 4: 40, 5
    """
    record = EpisodeRecord([100])
    for parent, context in ((FROM_PROMPT, []), (0, [10]), (0, [20]), (1, [30]), (FROM_NOTHING, [40])):
        place = len(record.turns)
        assert record.add(RecordedTurn(parent, context, written(place + 1), reward=place / 4)) == place
    return record


def test_the_policy_has_read_what_stands_on_its_path_and_nothing_of_other_branches() -> None:
    record = tree()
    assert [record.ids_through(place) for place in range(5)] == [
        [100, 1],
        [100, 1, 10, 2],
        [100, 1, 20, 3],
        [100, 1, 10, 2, 30, 4],
        [40, 5],
    ]
    assert record.ids_through(FROM_PROMPT) == [100]
    assert record.ids_through(FROM_NOTHING) == []


def test_a_branch_is_a_path_from_the_prompt_or_from_nothing() -> None:
    record = tree()
    assert [record.path(place) for place in (FROM_PROMPT, 0, 2, 3, 4)] == [[], [0], [0, 2], [0, 1, 3], [4]]
    assert [record.root(place) for place in (FROM_PROMPT, 3, 4, FROM_NOTHING)] == [
        FROM_PROMPT,
        FROM_PROMPT,
        FROM_NOTHING,
        FROM_NOTHING,
    ]


def test_a_record_in_its_wire_form_has_each_token_once() -> None:
    record = tree()
    assert record.wire_turns() == [
        Turn(FROM_PROMPT, 0, 1, reward=0.0),
        Turn(0, 1, 1, reward=0.25),
        Turn(0, 1, 1, reward=0.5),
        Turn(1, 1, 1, reward=0.75),
        Turn(FROM_NOTHING, 1, 1, reward=1.0),
    ]
    assert record.context_ids() == [10, 20, 30, 40]
    assert record.completion("stop").completion_ids == [1, 2, 3, 4, 5]
    assert (record.num_tokens, record.rewards) == (9, {0: 2.5})


# ── resume ────────────────────────────────────────────────────────────────────────────────────────
# The stored form of an unfinished episode.


def turn(parent: int, context: list[int], written: list[int], version: int) -> RecordedTurn:
    completion = Completion(
        completion_ids=written,
        behavior_logprobs=[-0.5] * len(written),
        spans=[Span(version, 0, len(written))],
        finish_reason="stop",
        generate_s=0.0,
        mask_counts=[2] * len(written),
        mask_ids=[n for token in written for n in (token, token + 1)],
    )
    return RecordedTurn(parent, context, completion, observation="o", text="t", reward=0.5, call_s=0.1)


FINISHED = [turn(FROM_PROMPT, [], [4, 5], 1), turn(0, [6], [7], 1), turn(0, [8], [9, 9, 9], 2)]
FINISHED[1].completion = structs.replace(FINISHED[1].completion, finish_reason="length")
BEGUN = [turn(2, [1, 1], [3], 3)]
BEGUN[0].completion = structs.replace(BEGUN[0].completion, finish_reason="unfinished")
DRAWS = [0, 3, 1, 2]
for its_draw, one in zip(DRAWS, [*FINISHED, *BEGUN], strict=True):
    one.draw = its_draw
STATE = EpisodeState(
    num_finished=3, num_answered=2, answer=Answer(reward=1.0), snapshot=b"here", rewards=[0.5, 0.5], cut=[1]
)


def test_what_is_stored_is_read_back() -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), BEGUN, STATE)
    assert stored is not None
    assert stored.completion.finish_reason == "unfinished"
    resumed = read(stored)
    assert resumed.state == structs.replace(STATE, draws=DRAWS)
    assert list(resumed.finished) == FINISHED
    assert list(resumed.begun) == BEGUN
    assert resumed.num_tokens == 7


def test_turns_of_a_finished_episode_are_read_too() -> None:
    record = EpisodeRecord([2], FINISHED)
    stored = as_sampled(record, [], STATE)
    assert stored is not None
    assert [turn.parent for turn in recorded(stored)] == [turn.parent for turn in FINISHED]


def test_nothing_is_stored_before_the_first_token() -> None:
    assert as_sampled(EpisodeRecord([2]), [], EpisodeState(num_finished=0)) is None


@pytest.mark.parametrize(
    "changes",
    [{"num_finished": 5}, {"num_answered": 4}, {"num_answered": -1}, {"num_finished": -1, "num_answered": -1}],
)
def test_a_state_that_does_not_fit_the_turns_is_damaged(changes: dict[str, int]) -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), BEGUN, structs.replace(STATE, **changes))
    assert stored is not None
    with pytest.raises(EngineError, match=r"damaged: .* answered and .* finished turns of 4") as refused:
        read(stored)
    assert refused.value.retryable


@pytest.mark.parametrize("snapshot", [b"", b"\xff\xff", b"\x80"])
def test_bytes_that_are_no_state_are_damaged(snapshot: bytes) -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), [], STATE)
    assert stored is not None
    with pytest.raises(EngineError, match="damaged"):
        read(structs.replace(stored, snapshot=snapshot))
