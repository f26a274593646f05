"""
One episode whose turns an agent program asks for.

    request ─▶ the same as one whose client went away ─▶ the reply that was lost, or is being sampled
               any other one ─▶ place in the lineage ─▶ ids of its context ─▶ turn, recorded or sampled ─▶ reply

Sampling belongs to the episode and not to the connection: a client that loses it asks again and gets the same turn,
once. A turn whose reply reached nobody is not trained, unless a later request repeats it or builds on it.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

from msgspec import structs

from asyncrl.engine import ChatMessage
from asyncrl.episodes.conversation import MALFORMED, Conversation, EpisodeOver, Limit
from asyncrl.episodes.environment import Score
from asyncrl.episodes.gateway.lineage import FoundPlace, Lineage, RootCause, chain
from asyncrl.episodes.gateway.reply import Choice, Reply, choice_of
from asyncrl.episodes.gateway.request import (
    REFERENCE,
    ChatRequest,
    RefusedRequest,
    Wishes,
    num_chars,
    turn_of,
)
from asyncrl.episodes.pictures import PicturesExceeded
from asyncrl.episodes.record import RecordedTurn, TurnContext
from asyncrl.episodes.steps import MOST_CHARS
from asyncrl.errors import DataError, EngineError, PromptTooLong
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image
from asyncrl.messages.words import Unenforced

# ── earlier ───────────────────────────────────────────────────────────────────────────────────
# Turns that another node recorded before it was lost, to be given again to an agent program that runs again.
#
#     program asks ─▶ the same tokens, after the same turn, are in the record ─▶ the recorded turn, unsampled
#                                                           are not           ─▶ sampled
#     a recorded turn that is unfinished ─▶ sampling continues it
#
# Requests are compared by the ids and pictures that the policy would read, so the program may word its messages as it
# likes. Turns that the second run never asks for leave the record: nothing in the new episode depends on them.


Key = tuple[int, int, tuple[int, ...], tuple[Image, ...]]


class EarlierTurns:
    """Recorded turns that were not asked for yet. A turn is given once."""

    def __init__(self, turns: Sequence[RecordedTurn] = ()) -> None:
        self._left: dict[Key, deque[int]] = defaultdict(deque)
        self._turns = list(turns)
        self._earlier = {FROM_PROMPT: FROM_PROMPT, FROM_NOTHING: FROM_NOTHING}
        """Index in the earlier record by index in the new one."""
        for place, turn in enumerate(self._turns):
            self._left[_key(turn.context, turn.parent)].append(place)

    @property
    def num_left(self) -> int:
        return sum(len(places) for places in self._left.values())

    def take(self, context: TurnContext) -> tuple[int, RecordedTurn] | None:
        """The first turn left with this context, whose parent is in the new record, with its earlier index."""
        if not self._turns or (earlier := self._earlier.get(context.parent)) is None:
            return None
        places = self._left.get(_key(context, earlier))
        if not places:
            return None
        place = places.popleft()
        return place, self._turns[place]

    def moved(self, earlier: int, place: int) -> None:
        """The turn with this earlier index is in the new record at ``place``."""
        self._earlier[place] = earlier


def _key(context: TurnContext, earlier: int) -> Key:
    return context.seat, earlier, tuple(context.context_ids), tuple(context.images)


# ── counts ────────────────────────────────────────────────────────────────────────────────────
# Counts of one episode, or of all of a node: roots and forks by cause, and what else happened to requests.

ALARMING: tuple[RootCause, ...] = ("edited_reply", "edited_history", "tools_changed", "template_differs")
"""Causes of roots that a program does not intend, as a rule: each makes a branch of what could be one."""


class Counts(Counter[str]):
    """
    ``sampled``, ``replayed``, ``repeats``, ``roots``, ``root_CAUSE``, ``forks``, ``fork_retry``, ``fork_branch``,
    ``undelivered``, ``refused_CODE``, ``ignored_FIELD``, ``unenforced_FIELD``, ``malformed_calls``,
    ``malformed_FAULT``.

    A fork is a turn whose parent has another child: ``retry`` if the program sent the same messages again, ``branch``
    if it sent others, another seed, or asked for several choices. A repeat is a request whose reply was lost on its
    way, and gets that.
    """

    @property
    def scores(self) -> dict[str, float]:
        """Metrics of an episode, for `Trajectory.scores`."""
        broken = sum(self[f"root_{cause}"] for cause in ALARMING)
        counted = {name: float(self[name]) for name in ("forks", "roots", *MALFORMED)}
        unenforced = sum(self[f"unenforced_{name}"] for name in get_args(Unenforced))
        return {**counted, "broken_lineage": float(broken), "unenforced": float(unenforced)}

    @classmethod
    def clash_of(cls, metrics: Mapping[str, float]) -> str:
        """Return the metric that a program may not give, and why, to follow a verb; empty if it may give all."""
        taken = sorted(cls().scores.keys() & metrics.keys())
        return f"a metric {taken[0]!r}, which the gateway counts itself; rename it" if taken else ""


# ── episode ───────────────────────────────────────────────────────────────────────────────────

log = get_logger()


Rooted = tuple[TurnContext, RootCause | None]
"""Context of a turn, and the reason for which it does not follow what the program sent back."""


class LimitReached(RefusedRequest):
    """A limit of the episode leaves no room for another turn."""

    def __init__(self, limit: Limit) -> None:
        code = "context_length_exceeded" if limit == "max_tokens" else f"{limit}_exceeded"
        super().__init__(400, code, f"environment.{limit} is reached: the episode has no room for another turn")


class OpenEpisode:
    """
    An episode that a program talks to; made by `Gateway.open`.

    Args:
        lineages: One for each seat.
        prompt: The messages of the prompt, with marks at the places of its pictures.
        base_url: For ``OPENAI_BASE_URL``.
        key: For ``OPENAI_API_KEY``; also part of the URL.
        reward_url: For ``PUT``.
        wishes: Makes the wishes of one request.
        as_template: ``environment.history`` is ``as_template``.
        earlier: Turns of an earlier run of the program; the conversation's record begins without them.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        conversation: Conversation,
        lineages: Sequence[Lineage],
        *,
        prompt: Sequence[ChatMessage] = (),
        base_url: str,
        key: str,
        reward_url: str,
        wishes: Callable[[], Wishes],
        as_template: bool,
        earlier: Sequence[RecordedTurn],
        counts: Counts,
        close: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self.base_url = base_url
        self.key = key
        self.reward_url = reward_url
        self.text = conversation.boundary.text
        """Text of tokens."""
        self.counts = Counts()
        self.score: Score | None = None
        """The program's word, if it gave one."""
        self.limit: Limit | None = None
        """Limit of the episode for which a request was refused."""
        self.failure: BaseException | None = None
        """Error of the engine in the last turn; None if it was sampled. A program that ends for it is not to blame."""
        self._conversation = conversation
        self._record = conversation.record
        self._lineages = lineages
        self._prompt = list(prompt)
        self._as_template = as_template
        self.earlier = EarlierTurns(earlier)
        """Turns of the earlier run that this one has not asked for; they are not in its record."""
        self._all_counts = counts
        self._close = close
        self._clock = clock
        self.wishes = wishes
        self._replies: set[asyncio.Task[Reply]] = set()
        """Replies that are being made."""
        self._lost: dict[bytes, deque[asyncio.Task[Reply]]] = {}
        """Replies, made or being made, whose client went away, by identity of the request."""
        self._call_ids: set[str] = set()
        """Ids of calls that the policy wrote."""
        self.is_asked_in_vain = False
        """True once the same request was refused `MOST_IN_VAIN` times for a limit, each time after the time before."""
        self.on_asked_in_vain: Callable[[], object] = lambda: None
        self._in_vain: Counter[bytes] = Counter()
        """Refusals for a limit by identity of the request."""
        self._is_closed = False
        self._said: dict[int, list[ChatMessage]] = {}
        """Messages up to each reply, and it, by its number."""
        self._num_broken = 0
        """Tokens of contexts that a program did not mean to send again."""
        self._num_children: Counter[int] = Counter()
        """Turns by parent."""
        self._children: Counter[tuple[int, int, bytes]] = Counter()
        """Turns by seat, parent and hash of all messages."""
        self._turn_ended = asyncio.Event()
        """Set when a turn ends, and with it its claim on the room of the episode; then replaced by another."""

    @property
    def num_seats(self) -> int:
        return len(self._lineages)

    async def taken(self, request: ChatRequest) -> ChatRequest:
        """
        The request with digests in place of the files of its pictures, which are kept, and of marks in its prompt.

        Raises `RefusedRequest` if one cannot be read, or they exceed the limits of the episode.
        """
        pictures, num = self._conversation.pictures, len(self._prompt)
        try:
            messages = await pictures.taken(request.messages)
            if pictures.prompt and messages[:num] == self._prompt:
                messages[:num] = pictures.with_prompt(self._prompt)
            return structs.replace(request, messages=messages)
        except PicturesExceeded as error:
            self.limit = error.limit
            raise LimitReached(error.limit) from error
        except DataError as error:
            problem = f"the pictures of the request cannot be shown: {error}"
            raise RefusedRequest(400, "invalid_messages", problem, param="messages") from error

    def reply(self, request: ChatRequest) -> "asyncio.Task[Reply]":
        """
        Begin the reply to a request, or find the one that its client has lost. Await it shielded.

        A reply that was delivered is not given again, and neither is one for which another client waits: the same
        request is then another sample.

        Raises (the task):
            RefusedRequest: The request cannot be answered, or not now.
        """
        if self._is_closed:  # while the body came
            raise RefusedRequest(404, "not_found", "the episode is over")
        if len(self._replies) >= MOST_REPLIES:
            problem = f"{MOST_REPLIES} replies of this episode are being sampled; ask again when some are there"
            raise RefusedRequest(429, "busy", problem, retry=True)
        request = self._whole(request)
        hashes = chain(request.messages)
        identity = request.identity(hashes[-1])
        lost = self._lost.get(identity)
        while lost:
            if not _has_failed(task := lost.popleft()):
                self.count("repeats")
                return task
        task = asyncio.create_task(self._make(request, hashes))
        task.add_done_callback(self._replies.discard)
        task.add_done_callback(_has_failed)  # an error that nobody waits for any more is no warning
        task.add_done_callback(partial(self._note_limit, identity, self._in_vain[identity]))
        self._replies.add(task)
        self.count(*(f"ignored_{name}" for name in request.ignored))
        for name in request.unenforced:
            if not self._all_counts[f"unenforced_{name}"]:
                log.warning("gateway.not_enforced", field=name, remedy="environment.gateway_refuses refuses it")
            self.count(f"unenforced_{name}")
        return task

    def _note_limit(self, identity: bytes, before: int, task: "asyncio.Task[Reply]") -> None:
        """Count the refusals of one request for a limit; ``before`` were told before it was sent again."""
        if not task.cancelled() and isinstance(task.exception(), LimitReached):
            self._in_vain[identity] = before + 1
            if before + 1 >= MOST_IN_VAIN and not self.is_asked_in_vain:
                self.is_asked_in_vain = True
                self.on_asked_in_vain()

    def was_lost(self, request: ChatRequest, task: "asyncio.Task[Reply]") -> None:
        """The client of this request went away before it had the reply: the same request gets it."""
        identity = request.identity(chain(self._whole(request).messages)[-1])
        if not _has_failed(task):
            self._lost.setdefault(identity, deque()).append(task)
            task.add_done_callback(lambda ended: self._lost.pop(identity, None) if _has_failed(ended) else None)

    def num_tokens(self, request: ChatRequest) -> int:
        """Tokens that the policy would read for a request. Raises `RefusedRequest`."""
        request = self._whole(request)
        hashes = chain(request.messages)
        found = self._lineages[request.seat].find(request.messages, hashes, request.tools_key)
        context, _ = self._context(found, request, hashes)
        return self._num_through(context.parent) + len(context.context_ids)

    def prompt_ids(self, reply: Reply) -> list[int]:
        """All tokens that the choices of a reply read."""
        return [*self._record.ids_through(reply.parent), *reply.context_ids]

    def was_delivered(self, reply: Reply) -> None:
        """A client has the reply, so its turns are trained."""
        for choice in reply.choices:
            self._record.turns[choice.turn].is_trained = True

    def reward_turns(self, rewards: Mapping[str, float]) -> None:
        """
        Give completions rewards, by the ids that they were delivered with; the last word on each counts.

        Raises `RefusedRequest` if this episode has not delivered one of them; none has a reward then.
        """
        places = {completion: turn_of(completion) for completion in rewards}
        if unknown := [completion for completion, place in places.items() if place not in self._said]:
            problem = f"{unknown[0]!r:.80} is no completion of this episode, whose ids are like 'chatcmpl-0' or 'msg_0'"
            raise RefusedRequest(400, "invalid_reward", problem, param="completions")
        for completion, reward in rewards.items():
            self._record.turns[places[completion]].reward = reward

    async def close(self) -> None:
        """Stop sampling, and answer no further request. Idempotent."""
        self._is_closed = True
        self._close()
        tasks = list(self._replies)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.earlier.num_left:
            log.info("gateway.turns_not_repeated", turns=self.earlier.num_left)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    async def _make(self, request: ChatRequest, hashes: Sequence[bytes]) -> Reply:
        found = self._lineages[request.seat].find(request.messages, hashes, request.tools_key)
        if found.parent >= 0:
            self._record.turns[found.parent].is_trained = True
        context, cause = self._context(found, request, hashes)
        turns = await self._turns(context, request)
        self._count_branches(context, cause, found, request)
        choices = [self._choice(turn, request) for turn in turns]
        for choice in choices:
            self._lineages[request.seat].add(found.seen, choice.message, request.tools_key, choice.turn)
            self._said[choice.turn] = [*request.messages[request.num_instructions :], choice.message]
        return Reply(
            created=int(self._clock()),
            model=request.model,
            choices=choices,
            parent=context.parent,
            context_ids=context.context_ids,
            num_prompt=self._num_through(context.parent) + len(context.context_ids),
        )

    def _whole(self, request: ChatRequest) -> ChatRequest:
        """The request with all messages, if it sent only those after an earlier reply, or replies by their ids."""
        if any(REFERENCE in message for message in request.messages):
            messages = [
                self._referred(message, request.seat) if REFERENCE in message else message
                for message in request.messages
            ]
            request = structs.replace(request, messages=messages)
        if not request.previous:
            return request
        if (said := self._said_in(request.seat, turn_of(request.previous))) is None:
            problem = f"previous_response_id is {request.previous!r:.80}, which this episode has not given"
            raise RefusedRequest(400, "invalid_request", problem, param="previous_response_id")
        messages, num = request.messages, request.num_instructions
        return structs.replace(request, messages=[*messages[:num], *said, *messages[num:]], previous="")

    def _said_in(self, seat: int, turn: int) -> list[ChatMessage] | None:
        """Messages up to the reply with this number, and it, if this seat has given it."""
        said = self._said.get(turn)
        return said if said and self._record.turns[turn].seat == seat else None

    def _referred(self, message: ChatMessage, seat: int) -> ChatMessage:
        """The reply that a message names."""
        if (said := self._said_in(seat, message[REFERENCE])) is None:
            problem = f"turn {message[REFERENCE]} is referred to, which this episode has not had"
            raise RefusedRequest(400, "invalid_request", problem, param="input")
        return said[-1]

    def _context(self, found: FoundPlace, request: ChatRequest, hashes: Sequence[bytes]) -> Rooted:
        """Tokens and pictures that the policy reads. Raises `RefusedRequest` if the template cannot render them."""
        most = self._conversation.limits.max_tokens * MOST_CHARS
        if sum(map(num_chars, found.new)) > most:  # before anything is encoded
            self.limit = "max_tokens"
            raise LimitReached("max_tokens")
        try:
            return self._rendered(found, request, hashes)
        except EngineError as error:
            raise RefusedRequest(400, "invalid_messages", str(error), param="messages") from error
        except RecursionError:
            raise RefusedRequest(
                400, "invalid_messages", "the messages are nested too deeply", param="messages"
            ) from None

    def _rendered(self, found: FoundPlace, request: ChatRequest, hashes: Sequence[bytes]) -> Rooted:
        seat, boundary = request.seat, self._conversation.boundary
        images = self._conversation.pictures.images
        if found.parent == FROM_PROMPT:
            return TurnContext(FROM_PROMPT, seat=seat), None
        messages = named(request.messages)
        new = messages[len(messages) - len(found.new) :]
        if found.parent == FROM_NOTHING:
            opened = boundary.opening(messages, request.tools)
            return TurnContext(FROM_NOTHING, opened, images(messages), seat), found.cause
        last_ids = self._record.turns[found.parent].completion.completion_ids
        try:
            context_ids = boundary.after(new, last_ids)
        except EngineError:
            opened = boundary.opening(messages, request.tools)
            return TurnContext(FROM_NOTHING, opened, images(messages), seat), "template_differs"
        if self._as_template:
            read_ids = [*self._record.ids_through(found.parent), *context_ids]
            retold = boundary.retold(self._as_sampled(messages, hashes, request), read_ids, request.tools)
            if retold is not None:
                return self._shared(found.parent, TurnContext(FROM_NOTHING, retold, images(messages), seat))
        return TurnContext(found.parent, context_ids, images(new), seat), None

    def _as_sampled(
        self, messages: Sequence[ChatMessage], hashes: Sequence[bytes], request: ChatRequest
    ) -> list[ChatMessage]:
        """Messages for the chat template, with the turns of this episode as the policy wrote them, thoughts too."""
        boundary = self._conversation.boundary
        told = boundary.quoted(messages)
        for place, message in enumerate(request.messages):
            if message["role"] == "assistant":
                turn = self._lineages[request.seat].turn(hashes[place + 1], message, request.tools_key)
                if turn is not None:
                    told[place] = boundary.message(self._record.turns[turn].completion.completion_ids)
        return told

    def _shared(self, parent: int, whole: TurnContext) -> Rooted:
        """``whole`` after the last turn, from ``parent`` to the root, whose tokens and pictures it begins with."""
        ids, images = whole.context_ids, whole.images
        places = self._record.path(parent)[::-1] + ([FROM_PROMPT] if self._record.root(parent) == FROM_PROMPT else [])
        for place in places:
            before, seen = self._record.ids_through(place), self._record.images_through(place)
            if ids[: len(before)] == before and images[: len(seen)] == seen:
                cause: RootCause | None = None if place == parent else "template_differs"
                return TurnContext(place, ids[len(before) :], images[len(seen) :], whole.seat), cause
        return whole, "template_differs"

    async def _turns(self, context: TurnContext, request: ChatRequest) -> list[int]:
        """Turns of a reply; all or none."""
        if request.n == 1:
            return [await self._turn(context, request)]
        tasks = [asyncio.create_task(self._turn(context, request)) for _ in range(request.n)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _turn(self, context: TurnContext, request: ChatRequest) -> int:
        taken = self.earlier.take(context)
        if taken and taken[1].completion.finish_reason != "unfinished":
            turn = self._record.add(structs.replace(taken[1], parent=context.parent))
            self.count("replayed")
        else:
            turn = await self._sampled(context, request, taken[1] if taken else None)
            self.count("sampled")
        if taken:
            self.earlier.moved(taken[0], turn)
        self._record.turns[turn].is_trained = False  # until it is delivered
        return turn

    async def _sampled(self, context: TurnContext, request: ChatRequest, begun: RecordedTurn | None) -> int:
        """Sample a turn; while other turns of the episode have a claim on all of its room, wait for them."""
        while True:
            try:
                turn = await self._conversation.say(
                    context, max_tokens=request.max_tokens, stop=request.stop, begun=begun
                )
            except EpisodeOver as over:
                if over.limit != "max_tokens" or not self._conversation.running:
                    self.limit = over.limit
                    raise LimitReached(over.limit) from over
                await self._turn_ended.wait()
                continue
            except asyncio.CancelledError:  # beside another choice that failed
                self._wake()
                raise
            except Exception as error:
                self.failure = error
                self._wake()
                raise _engine_failed(error) from error
            self.failure = None
            self._wake()
            return turn

    def _wake(self) -> None:
        self._turn_ended.set()
        self._turn_ended = asyncio.Event()

    def _choice(self, turn: int, request: ChatRequest) -> Choice:
        completion, boundary = self._record.turns[turn].completion, self._conversation.boundary
        said = boundary.said(completion.completion_ids, completion.finish_reason, request.tools)
        if request.reads_calls:
            self.count(*self._conversation.note_calls(said))
        return choice_of(
            said,
            turn,
            reads_calls=request.reads_calls,
            taken_ids=self._call_ids,
            stop=request.stop,
            token_ids=completion.completion_ids,
            logprobs=completion.behavior_logprobs,
            finish_reason=completion.finish_reason,
        )

    def _num_through(self, place: int) -> int:
        """Number of tokens of `EpisodeRecord.ids_through`."""
        turns = (self._record.turns[number] for number in self._record.path(place))
        num = sum(len(turn.context_ids) + len(turn.completion.completion_ids) for turn in turns)
        return num if self._record.root(place) == FROM_NOTHING else num + len(self._record.prompt_ids)

    # ── counts ──────────────────────────────────────────────────────────────────────────────────

    def count(self, *names: str) -> None:
        """Count these for the episode, and for its node."""
        for name in names:
            self.counts[name] += 1
            self._all_counts[name] += 1

    def _count_branches(
        self, context: TurnContext, cause: RootCause | None, found: FoundPlace, request: ChatRequest
    ) -> None:
        if cause:
            self.count("roots", f"root_{cause}")
            if cause != "new_root":
                log.warning("gateway.lineage_broken", cause=cause, messages=len(request.messages))
                self._alarm(context, cause)
        parent = context.parent
        same = request.seat, parent, found.seen
        num_same = self._children[same]
        num_siblings = num_same if parent == FROM_NOTHING else self._num_children[parent]
        self._children[same] += request.n
        self._num_children[parent] += request.n
        for _ in range(request.n - 1 + (num_siblings > 0)):
            self.count("forks", "fork_retry" if num_same and request.n == 1 and request.seed is None else "fork_branch")

    def _alarm(self, context: TurnContext, cause: RootCause) -> None:
        """Say once that contexts which repeat what the policy has read use up the episode."""
        before, most = self._num_broken, MOST_BROKEN * self._conversation.limits.max_tokens
        self._num_broken += len(context.context_ids)
        if before <= most < self._num_broken:
            log.warning(
                "gateway.budget_eaten",
                cause=cause,
                tokens=self._num_broken,
                max_tokens=self._conversation.limits.max_tokens,
                remedy="send replies back as they were delivered, or raise environment.max_tokens",
            )


def named(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Messages in which an answer of a tool has the tool's name, by the id of its call: some chat templates show it."""
    names: dict[str, str] = {}
    told = []
    for message in messages:
        names.update((call["id"], call["function"]["name"]) for call in message.get("tool_calls", ()))
        name = names.get(message.get("tool_call_id", ""))
        told.append(
            {**message, "name": name} if message["role"] == "tool" and name and "name" not in message else message
        )
    return told


def _has_failed(task: "asyncio.Task[Reply]") -> bool:
    """True if the task ended without a reply, so that a repetition of the request begins anew."""
    return task.done() and (task.cancelled() or task.exception() is not None)


MOST_REPLIES = 256
"""Replies of an episode that are made at a time: each holds its request."""
MOST_IN_VAIN = 3
"""Times that a program may send the same request to an episode without room; one that does so for ever has no end."""
MOST_BROKEN = 0.25
"""Share of ``environment.max_tokens`` that contexts sent again by mistake may take before that is told."""


def _engine_failed(error: Exception) -> RefusedRequest:
    if isinstance(error, PromptTooLong):
        return RefusedRequest(400, "context_length_exceeded", str(error))
    may_retry = isinstance(error, EngineError) and error.retryable
    return RefusedRequest(503, "engine_failed", f"the engine could not sample: {error}", retry=may_retry)
