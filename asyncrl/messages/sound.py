"""
Check of one trajectory, before it is stored, judged or trained on. No node trusts that another has made it.

    payload ─▶ Trajectory ─▶ problem_of(trajectory, unit, summary, limits) ─▶ "" | "cause: what was found, and expected"

The cause, the part before the first colon, is one of `CAUSES`, so that problems can be counted by it. A sound
trajectory of 2,500 tokens takes about 5 microseconds, so every node checks every one.

Versions of the spans need not increase: a node may resume a completion that a newer policy began.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from math import inf, isfinite
from typing import Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import (
    FROM_NOTHING,
    FROM_PROMPT,
    MAX_SEATS,
    Image,
    Span,
    Trajectory,
    TrajectoryLimits,
    TrajectorySummary,
    Turn,
    Unit,
)
from asyncrl.messages.verdict_limits import MAX_METRIC, MAX_METRICS, MAX_NAME_CHARS, MAX_REWARD, name_problem
from asyncrl.messages.words import FinishReason

# ── turns ─────────────────────────────────────────────────────────────────────────────────────
# Check of an episode's turns: a tree whose tokens are those of the trajectory.
#
#     turns     parent  -1   0   0   2        context_ids      a a │ b │ c c │ d
#     branches          0 ─┬─ 1               completion_ids   x x x │ y │ z │ w w
#                          └─ 2 ── 3          one part for each turn, in the order written
#
#     "cause: what was found, and expected", or "" as `asyncrl.messages.sound.problem_of`

BAD_TURNS = "turns that do not fit the tokens"
BAD_SCORES = "impossible metrics of the environment"

MAX_CHARS = 1024
"""Characters of text per token; the longest tokens of known vocabularies have a few hundred."""


def turn_problem_of(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    """Reason to refuse a trajectory's turns, context or metrics; empty if there is none."""
    turns, is_unfinished = trajectory.turns, trajectory.finish_reason == "unfinished"
    if not turns:
        if trajectory.context_ids or trajectory.scores or trajectory.snapshot:
            return f"{BAD_TURNS}: none, expected some, because there is context, a metric or a snapshot"
        missing = f"{BAD_TURNS}: none, expected 1 .. {limits.max_turns} (environment.max_turns)"
        return missing if limits.max_turns and not is_unfinished else ""
    if limits.max_turns is not None and len(turns) > limits.max_turns:
        return f"{BAD_TURNS}: {len(turns)} turns, expected at most {limits.max_turns} (environment.max_turns)"
    if trajectory.snapshot and not is_unfinished:
        return f"{BAD_TURNS}: a snapshot of {trajectory.snapshot.nbytes} bytes, expected none of a finished episode"
    for place, turn in enumerate(turns):
        if problem := _problem_of_turn(turn, place) or _problem_of_seat(turn, turns, limits.seats):
            return f"{BAD_TURNS}: turn {place} has {problem}"
    context, written = sum(turn.num_context for turn in turns), sum(turn.num_written for turn in turns)
    if 4 * context != trajectory.context_ids.nbytes or 4 * written != trajectory.completion_ids.nbytes:
        tokens = (
            f"{trajectory.context_ids.nbytes / 4:g} of context and {trajectory.completion_ids.nbytes / 4:g} written"
        )
        return f"{BAD_TURNS}: {context} tokens of context and {written} written, expected {tokens}"
    return _score_problem(trajectory)


class HasParent(Protocol):
    """A turn, on the wire or in the record of a rollout."""

    @property
    def parent(self) -> int: ...


def path_to(turns: Sequence[HasParent], place: int) -> list[int]:
    """Indices of the turns from a root to ``place``, which is the last; empty for the prompt, or for nothing."""
    found = []
    while place >= 0:
        found.append(place)
        place = turns[place].parent
    return found[::-1]


def num_branches(turns: Sequence[Turn]) -> int:
    """Turns that no other turn follows; 1 for a trajectory without turns."""
    return len(turns) - len({turn.parent for turn in turns if turn.parent >= 0}) if turns else 1


def _problem_of_turn(turn: Turn, place: int) -> str:
    if not FROM_NOTHING <= turn.parent < place:
        return f"parent {turn.parent}, expected {FROM_NOTHING} .. {place - 1}"
    least = int(turn.parent == FROM_NOTHING)  # the policy must have read something
    if turn.num_context < least or turn.num_written < 1:
        return f"{turn.num_context} tokens of context and {turn.num_written} written, expected {least} and 1 or more"
    if not 0 <= turn.num_images <= turn.num_context:
        return f"{turn.num_images} pictures, expected 0 .. {turn.num_context}, a token of context each or more"
    if not -MAX_REWARD <= turn.reward <= MAX_REWARD:  # NaN compares false too
        return f"reward {turn.reward}, expected a finite number of at most {MAX_REWARD:g} either way"
    if not (turn.call_s >= 0.0 and isfinite(turn.call_s)):
        return f"{turn.call_s} s of its environment, expected a finite number, 0 or more"
    if len(turn.observation) > turn.num_context * MAX_CHARS or len(turn.text) > turn.num_written * MAX_CHARS:
        return f"{len(turn.observation)} and {len(turn.text)} characters, expected at most {MAX_CHARS} for each token"
    return ""


def _problem_of_seat(turn: Turn, turns: Sequence[Turn], seats: int) -> str:
    most = (seats or MAX_SEATS) - 1
    if not 0 <= turn.seat <= most:
        return f"seat {turn.seat}, expected 0 .. {most} (environment.seats)"
    before = turns[turn.parent].seat if turn.parent >= 0 else turn.seat if turn.parent == FROM_NOTHING else 0
    if turn.seat != before:
        return f"seat {turn.seat} after {turn.parent}, expected seat {before}, which that belongs to"
    return ""


def _score_problem(trajectory: Trajectory) -> str:
    if len(trajectory.scores) > MAX_METRICS:
        return f"{BAD_SCORES}: {len(trajectory.scores)}, expected at most {MAX_METRICS}"
    for name, value in trajectory.scores.items():
        if name_problem(name) or not -MAX_METRIC <= value <= MAX_METRIC:
            found = f"{shown(name, MAX_NAME_CHARS)!r} is {value}"
            return f"{BAD_SCORES}: {found}, expected a short name that can be shown and a finite number"
    return ""


# ── images ────────────────────────────────────────────────────────────────────────────────────
# Check of a trajectory's pictures: those of its prompt, then those of its contexts, with a grid of patches each.
#
#     "cause: what was found, and expected", or "" as `asyncrl.messages.sound.problem_of`
#
# The trainer compares the grids with its own, because it cuts the pictures itself.

BAD_IMAGES = "other pictures than the prompt's"
BAD_GRIDS = "impossible grids of pictures"
BAD_FILES = "files that are not those of its pictures"
BAD_PROCESSOR = "no version of a processor"

MAX_PATCHES_PER_TOKEN = 64
"""Most patches that a model may merge into one image token; Qwen-VL models merge 4."""
MAX_VERSION = 500
"""Most characters of a processor's version."""


def image_problem_of(trajectory: Trajectory, images: Sequence[Image]) -> str:
    """Reason to refuse a trajectory of a prompt with these pictures; empty if there is none."""
    found = trajectory.images[: max(trajectory.num_prompt_images, 0)]
    expected = list(images) if reads_prompt(trajectory.turns) else []
    if found != expected:
        return f"{BAD_IMAGES}: {_digests(found)}, expected {_digests(expected)}"
    return grid_problem_of(trajectory)


def reads_prompt(turns: Sequence["HasParent"]) -> bool:
    """True if a turn follows the prompt, or there are none: a single completion does."""
    return not turns or any(turn.parent == FROM_PROMPT for turn in turns)


def grid_problem_of(trajectory: Trajectory) -> str:
    """Reason to refuse a trajectory's grids, files or processor, whatever its prompt is; empty if there is none."""
    if trajectory.num_prompt_images < 0 or len(trajectory.grids) != len(trajectory.images):
        return f"{BAD_GRIDS}: {len(trajectory.grids)}, expected one for each of {len(trajectory.images)} pictures"
    most = (len(trajectory.prompt_ids) + len(trajectory.context_ids)) // 4 * MAX_PATCHES_PER_TOKEN
    patches = 0
    for t, h, w in trajectory.grids:
        patches += t * h * w
        if min(t, h, w) < 1 or patches > most:
            found = f"{t} x {h} x {w} patches"
            return f"{BAD_GRIDS}: {found}, expected at least one and, of all pictures, at most {most}"
    if len(trajectory.processor) > MAX_VERSION:
        return f"{BAD_PROCESSOR}: {len(trajectory.processor)} characters, expected at most {MAX_VERSION}"
    return _file_problem(trajectory)


def shown_images(images: Sequence[Image], num_prompt: int) -> list[Image]:
    """Pictures that contexts alone have, each once; the first ``num_prompt`` are the prompt's."""
    distinct = {image.digest: image for image in images}
    for image in images[:num_prompt]:
        distinct.pop(image.digest, None)
    return list(distinct.values())


def _file_problem(trajectory: Trajectory) -> str:
    """Reason to refuse the files of pictures that an environment has shown."""
    shown_ones, files = shown_images(trajectory.images, trajectory.num_prompt_images), trajectory.image_files
    if len(files) < len(shown_ones) or (len(files) > len(shown_ones) and trajectory.finish_reason != "unfinished"):
        return f"{BAD_FILES}: {len(files)}, expected one for each of {len(shown_ones)} pictures of its contexts"
    for image, file in zip(shown_ones, files, strict=False):
        if image.num_bytes != file.nbytes or image.digest != sha256(file).digest():
            return f"{BAD_FILES}: one of {file.nbytes} bytes, expected the picture {_digests([image])}"
    return ""


def _digests(images: Sequence[Image]) -> str:
    return ", ".join(image.digest.hex()[:12] for image in images) or "none"


# ── trajectory ────────────────────────────────────────────────────────────────────────────────

HIGHEST_LOGPROB = 0.01
"""A log-prob is at most 0; engines that round logits before they subtract exceed that by less than this."""
LOWEST_LOGPROB = -1000.0
"""Far below any token that can be drawn: the noise of a sampler in float32 ends near -104."""
MAX_TOKEN_ID = 2**31 - 1

WRONG_UNIT = "payload of another unit"
BAD_LENGTHS = "arrays of wrong lengths"
TOO_LONG = "more tokens than allowed"
BAD_ID = "token id outside the vocabulary"
NEVER_SAMPLED = "token id that is never sampled"
BAD_LOGPROB = "impossible log-prob"
BAD_MASK = "impossible sampling mask"
BAD_ROUTES = "impossible experts"
BAD_SPANS = "spans that do not cover the tokens"
BAD_VERSION = "impossible policy version"
BAD_FINISH = "unknown finish reason"
BAD_TIME = "impossible generation time"
BAD_TEXT = "more text than tokens can spell"
BAD_SUMMARY = "summary that differs from the payload"
IMPOSSIBLE_SUMMARY = "impossible summary"
CAUSES = (
    WRONG_UNIT,
    BAD_LENGTHS,
    TOO_LONG,
    BAD_ID,
    NEVER_SAMPLED,
    BAD_LOGPROB,
    BAD_MASK,
    BAD_ROUTES,
    BAD_SPANS,
    BAD_VERSION,
    BAD_FINISH,
    BAD_TIME,
    BAD_TEXT,
    BAD_SUMMARY,
    BAD_GRIDS,
    BAD_FILES,
    BAD_TURNS,
    BAD_SCORES,
)

MAX_OPENED = 64
"""Characters of `Trajectory.opened`."""
_ID, _LOGPROB = np.dtype("<u4"), np.dtype("<f4")
_FINISH_REASONS = frozenset(get_args(FinishReason))


def problem_of(trajectory: Trajectory, unit: Unit, summary: TrajectorySummary | None, limits: TrajectoryLimits) -> str:
    """
    Reason for which a trajectory must not be used; empty if it is sound.

    Args:
        unit: Unit that it must be of.
        summary: Metadata by which it was handled so far; None compares nothing.
    """
    return (
        _length_problem(trajectory, limits)
        or turn_problem_of(trajectory, limits)
        or _id_problem("prompt", trajectory.prompt_ids, limits.vocab_size)
        or _id_problem("completion", trajectory.completion_ids, limits.vocab_size)
        or _never_problem(trajectory.completion_ids, limits)
        or _context_problem(trajectory, limits)
        or _logprob_problem(trajectory.behavior_logprobs)
        or _mask_problem(trajectory, limits)
        or _route_problem(trajectory, limits)
        or _span_problem(trajectory, limits)
        or _other_problem(trajectory)
        or grid_problem_of(trajectory)
        or _identity_problem(trajectory, unit, summary)
    )


def summary_problem_of(summary: TrajectorySummary, limits: TrajectoryLimits) -> str:
    """Reason for which a summary must not be used, before its payload is read; empty if a sound one may have it."""
    most, most_prompt = limits.max_tokens or MAX_TOKEN_ID, limits.max_prompt_tokens or MAX_TOKEN_ID
    if not (1 <= summary.num_spans <= summary.num_tokens <= most and 0 <= summary.prompt_tokens <= most_prompt):
        return (
            f"{IMPOSSIBLE_SUMMARY}: {summary.prompt_tokens} prompt and {summary.num_tokens} completion tokens in "
            f"{summary.num_spans} spans, expected 0 .. {most_prompt} and 1 .. {most}, and no empty span"
        )
    if problem := _episode_problem(summary, most, limits.max_turns):
        return problem
    newest = inf if limits.newest_version is None else limits.newest_version
    if not 0 <= summary.oldest_version <= summary.newest_version <= newest:
        found = f"versions {summary.oldest_version} .. {summary.newest_version}"
        return f"{IMPOSSIBLE_SUMMARY}: {found}, expected increasing ones of 0 .. {newest}"
    return ""


def _episode_problem(summary: TrajectorySummary, most_tokens: int, max_turns: int | None) -> str:
    most_context = most_tokens - summary.num_tokens if max_turns != 0 else 0
    most_turns = summary.num_tokens if max_turns is None else min(summary.num_tokens, max(1, max_turns))
    if (
        0 <= summary.context_tokens <= most_context
        and 1 <= summary.num_branches <= summary.num_turns <= most_turns
        and 0 <= summary.environment_s < inf
    ):
        return ""
    return (
        f"{IMPOSSIBLE_SUMMARY}: {summary.context_tokens} tokens of context, {summary.num_turns} turns, "
        f"{summary.num_branches} branches, {summary.environment_s} s; expected 0 .. {most_context} tokens, "
        f"1 .. {most_turns} turns, of which one or more end a branch, and a finite time, 0 or more"
    )


def summary_of(trajectory: Trajectory) -> TrajectorySummary:
    """Summary of a trajectory with at least one span."""
    spans = trajectory.spans
    oldest = newest = spans[0].policy_version
    for span in spans[1:]:
        oldest, newest = min(oldest, span.policy_version), max(newest, span.policy_version)
    return TrajectorySummary(
        num_tokens=trajectory.completion_ids.nbytes // 4,
        prompt_tokens=trajectory.prompt_ids.nbytes // 4,
        oldest_version=oldest,
        newest_version=newest,
        num_spans=len(spans),
        finish_reason=trajectory.finish_reason,
        num_turns=max(1, len(trajectory.turns)),
        num_branches=num_branches(trajectory.turns),
        context_tokens=trajectory.context_ids.nbytes // 4,
        environment_s=sum(turn.call_s for turn in trajectory.turns),
    )


def _length_problem(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    prompt, tokens, logprobs = (
        trajectory.prompt_ids.nbytes,
        trajectory.completion_ids.nbytes,
        trajectory.behavior_logprobs.nbytes,
    )
    if not prompt or not tokens or logprobs != tokens or prompt % 4 or tokens % 4:
        return (
            f"{BAD_LENGTHS}: {prompt / 4:g} prompt ids, {tokens / 4:g} completion ids and {logprobs / 4:g} log-probs; "
            f"expected at least one of each, whole ones, and one log-prob per completion id"
        )
    if limits.max_tokens and tokens > 4 * limits.max_tokens:
        return f"{TOO_LONG}: {tokens // 4} completion tokens, expected at most {limits.max_tokens}"
    if limits.max_prompt_tokens and prompt > 4 * limits.max_prompt_tokens:
        return f"{TOO_LONG}: {prompt // 4} prompt tokens, expected at most {limits.max_prompt_tokens}"
    return ""


def _id_problem(kind: str, raw: memoryview, vocab_size: int) -> str:
    ids: NDArray[np.uint32] = np.frombuffer(raw, _ID)  # unsigned, so that negative ids are the highest
    highest = ids.argmax()  # several times faster than max
    most = vocab_size - 1 if vocab_size else MAX_TOKEN_ID
    if ids[highest] <= most:
        return ""
    return f"{BAD_ID}: {kind} id {ids.view('<i4')[highest]} at position {highest}, expected 0 .. {most}"


def _never_problem(raw: memoryview, limits: TrajectoryLimits) -> str:
    """Reason to refuse a token that the trainer gives no probability: it would be trained at a log-prob of -1e30."""
    if not limits.never:
        return ""
    ids: NDArray[np.uint32] = np.frombuffer(raw, _ID)
    is_never = _table(limits.vocab_size, limits.never)[ids]
    position = is_never.argmax()
    if not is_never[position]:
        return ""
    return f"{NEVER_SAMPLED}: completion id {ids[position]} at position {position}, expected one with a text"


@lru_cache(maxsize=4)  # models of this process
def _table(vocab_size: int, never: tuple[int, ...]) -> NDArray[np.bool_]:
    """[vocab_size] True at the ids that are never sampled."""
    table = np.zeros(vocab_size, np.bool_)
    table[list(never)] = True
    return table


def _context_problem(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    raw = trajectory.context_ids
    if limits.max_tokens and raw.nbytes + trajectory.completion_ids.nbytes > 4 * limits.max_tokens:
        found = f"{raw.nbytes // 4} tokens of context and {trajectory.completion_ids.nbytes // 4} written"
        return f"{TOO_LONG}: {found}, expected at most {limits.max_tokens} together"
    return _id_problem("context", raw, limits.vocab_size) if raw else ""


def _logprob_problem(raw: memoryview) -> str:
    logprobs: NDArray[np.float32] = np.frombuffer(raw, _LOGPROB)
    for place in (logprobs.argmin(), logprobs.argmax()):  # both find NaN first
        if not LOWEST_LOGPROB <= logprobs[place] <= HIGHEST_LOGPROB:
            return f"{BAD_LOGPROB}: {logprobs[place]} at position {place}, expected {LOWEST_LOGPROB:g} .. 0"
    return ""


def _mask_problem(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    """Reason to refuse the sampling masks unless they are complete and canonical, as the trainer relies on."""
    if not (trajectory.mask_counts or trajectory.mask_ids):
        missing = f"{BAD_MASK}: none, expected one for each token (sampling.replay_mask)"
        return missing if limits.replay_mask else ""
    num_tokens, num_counts = trajectory.completion_ids.nbytes // 4, trajectory.mask_counts.nbytes / 4
    if num_counts != num_tokens or trajectory.mask_ids.nbytes % 4:
        return f"{BAD_MASK}: {num_counts:g} sizes, expected one for each of {num_tokens} tokens, and whole ids"
    counts: NDArray[np.uint32] = np.frombuffer(trajectory.mask_counts, _ID)
    if not counts.all() or counts.sum(dtype=np.uint64) != (num_ids := trajectory.mask_ids.nbytes // 4):
        return f"{BAD_MASK}: {trajectory.mask_ids.nbytes // 4} ids, expected at least one for each token, as sizes say"
    if problem := _id_problem("mask", trajectory.mask_ids, limits.vocab_size):
        return problem
    ids: NDArray[np.uint32] = np.frombuffer(trajectory.mask_ids, _ID)
    begins = np.zeros(num_ids, np.bool_)
    begins[np.cumsum(counts[:-1])] = True
    if not (begins[1:] | (ids[1:] > ids[:-1])).all():
        return f"{BAD_MASK}: ids that repeat or go back, expected ascending ones in each mask"
    tokens: NDArray[np.uint32] = np.frombuffer(trajectory.completion_ids, _ID)
    if (num_found := np.count_nonzero(ids == np.repeat(tokens, counts))) != num_tokens:
        return f"{BAD_MASK}: {num_found} of {num_tokens} tokens are in their masks, expected all"
    return ""


def _route_problem(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    """Reason to refuse the experts unless the model has them all, as the trainer relies on."""
    routing = trajectory.routing
    if routing is None:
        missing = f"{BAD_ROUTES}: none, expected those of each token but the last (rollout.replay_routes)"
        return missing if limits.replay_routes else ""
    found = f"{routing.experts.nbytes} bytes, {routing.layers} layers, {routing.top_k} experts of {routing.width} bytes"
    num_tokens = (trajectory.prompt_ids.nbytes + trajectory.completion_ids.nbytes) // 4 - 1
    if (
        min(routing.layers, routing.top_k) < 1
        or routing.width not in (1, 2)
        or routing.experts.nbytes != num_tokens * routing.token_bytes
    ):
        return f"{BAD_ROUTES}: {found}; expected as many of each of {num_tokens} tokens"
    if (shape := limits.routes) is None:
        return ""
    if (routing.layers, routing.top_k) != (shape.layers, shape.top_k):
        return f"{BAD_ROUTES}: {found}; expected {shape.top_k} experts in each of {shape.layers} layers"
    experts = np.frombuffer(routing.experts, f"<u{routing.width}")
    if (highest := int(experts.max())) >= shape.num_experts:
        return f"{BAD_ROUTES}: expert {highest}, expected 0 .. {shape.num_experts - 1}"
    return ""


def _span_problem(trajectory: Trajectory, limits: TrajectoryLimits) -> str:
    newest = inf if limits.newest_version is None else limits.newest_version
    end = 0
    for span in trajectory.spans:
        if span.start != end or span.end <= end:
            return _cover_problem(trajectory, span)
        if not 0 <= span.policy_version <= newest:
            expected = "0 or more" if newest == inf else f"0 .. {newest}"
            return f"{BAD_VERSION}: {span.policy_version} in tokens {span.start} .. {span.end}, expected {expected}"
        end = span.end
    return "" if 4 * end == trajectory.completion_ids.nbytes else _cover_problem(trajectory, None)


def _cover_problem(trajectory: Trajectory, wrong: Span | None) -> str:
    num_tokens = trajectory.completion_ids.nbytes // 4
    found = f"{len(trajectory.spans)} spans" + (f", one of them {wrong.start} .. {wrong.end}" if wrong else "")
    return f"{BAD_SPANS}: {found}, expected contiguous, non-empty ones that cover 0 .. {num_tokens}"


def _other_problem(trajectory: Trajectory) -> str:
    if trajectory.finish_reason not in _FINISH_REASONS:
        return f"{BAD_FINISH}: {trajectory.finish_reason!r}, expected {', '.join(sorted(_FINISH_REASONS))}"
    if not 0.0 <= trajectory.generate_s < inf:
        return f"{BAD_TIME}: {trajectory.generate_s} s, expected a finite number, 0 or more"
    most = trajectory.completion_ids.nbytes // 4 * MAX_CHARS
    if len(trajectory.text) > most:
        return f"{BAD_TEXT}: {len(trajectory.text)} characters, expected at most {most}"
    if len(trajectory.opened) > MAX_OPENED:
        return f"{BAD_TEXT}: {len(trajectory.opened)} characters opened by the prompt, expected at most {MAX_OPENED}"
    return ""


def _identity_problem(trajectory: Trajectory, unit: Unit, summary: TrajectorySummary | None) -> str:
    if trajectory.unit != unit:
        return f"{WRONG_UNIT}: {_name(trajectory.unit)}, expected {_name(unit)}"
    if summary is None or summary == (found := summary_of(trajectory)):
        return ""
    different = [name for name in summary.__struct_fields__ if getattr(summary, name) != getattr(found, name)]
    sides = (
        f"{name} {getattr(summary, name)} in the summary, {getattr(found, name)} in the payload" for name in different
    )
    return f"{BAD_SUMMARY}: {'; '.join(sides)}"


def _name(unit: Unit) -> str:
    return f"{unit.split} {unit.group_id}/{unit.index}"
