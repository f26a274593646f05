"""
One episode whose turns an agent program asks for.

    request ─▶ the same as before ─▶ the same reply, or the one that is being sampled
               another one        ─▶ place in the lineage ─▶ ids of its context ─▶ turn, recorded or sampled ─▶ reply

Sampling belongs to the episode and not to the connection: a client that loses it asks again and gets the same turn. A
turn whose reply reached nobody is not trained, unless a later request repeats it or builds on it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from asyncrl.environment.interface import Score
from asyncrl.errors import EngineError, PromptTooLong
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.rollout.episodes.conversation import Conversation, EpisodeOver, Limit
from asyncrl.rollout.episodes.record import EpisodeRecord, RecordedTurn
from asyncrl.rollout.gateway.chat_request import ChatRequest, Identity
from asyncrl.rollout.gateway.counts import Counts
from asyncrl.rollout.gateway.earlier import EarlierTurns
from asyncrl.rollout.gateway.lineage import Found, Lineage, RootCause, chain
from asyncrl.rollout.gateway.refusal import Refused
from asyncrl.rollout.gateway.reply import Choice, Reply, delivered, finish_reason

log = get_logger()


class Place(Struct, frozen=True):
    """Parent of a turn, and the tokens that the policy reads after it."""

    parent: int
    context_ids: Sequence[int]
    cause: RootCause | None = None
    """Reason for which it does not follow what the program sent back; None if it does."""


class OpenEpisode:
    """
    An episode that a program talks to; made by `Gateway.open`.

    Args:
        base_url: For ``OPENAI_BASE_URL``.
        key: For ``OPENAI_API_KEY``; also part of the URL.
        reward_url: For ``PUT``.
        stop: Stop strings of the run.
        as_template: ``environment.history`` is ``as_template``.
        earlier: Turns of an earlier run of the program; the conversation's record begins without them.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        conversation: Conversation,
        lineage: Lineage,
        *,
        base_url: str,
        key: str,
        reward_url: str,
        stop: Sequence[str],
        as_template: bool,
        earlier: Sequence[RecordedTurn],
        counts: Counts,
        close: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.base_url = base_url
        self.key = key
        self.reward_url = reward_url
        self.stop = stop
        self.counts = Counts()
        self.score: Score | None = None
        """The program's word, if it gave one."""
        self.limit: Limit | None = None
        """Limit of the episode for which a request was refused."""
        self.failure: BaseException | None = None
        """Error of the engine in the last turn; None if it was sampled. A program that ends for it is not to blame."""
        self._conversation = conversation
        self._lineage = lineage
        self._as_template = as_template
        self._earlier = EarlierTurns(earlier)
        self._all_counts = counts
        self._close = close
        self._clock = clock
        self._replies: dict[Identity, asyncio.Task[Reply]] = {}
        """Replies that are made or being made, by identity of the request."""
        self._num_children: Counter[int] = Counter()
        """Turns by parent."""
        self._children: Counter[tuple[int, bytes]] = Counter()
        """Turns by parent and hash of all messages."""
        self._turn_ended = asyncio.Event()
        """Set when a turn ends, and with it its claim on the room of the episode; then replaced by another."""

    @property
    def _record(self) -> EpisodeRecord:
        return self._conversation.record

    @property
    def scores(self) -> dict[str, float]:
        """Metrics of the program and of the lineage."""
        return {**self.counts.scores, **(self.score.metrics if self.score else {})}

    @property
    def num_not_repeated(self) -> int:
        """Turns of the earlier run that this one has not asked for; they are not in its record."""
        return self._earlier.num_left

    def reply(self, request: ChatRequest) -> "asyncio.Task[Reply]":
        """
        Begin the reply to a request, or find it. Await it shielded: others may wait for it too.

        Raises (the task):
            Refused: The request cannot be answered, or not now.
        """
        hashes = chain(request.messages)
        identity = request.identity(hashes[-1])
        task = self._replies.get(identity)
        if task is not None and not _is_lost(task):
            self.count("repeats")
            return task
        task = asyncio.create_task(self._make(request, hashes))
        task.add_done_callback(_is_lost)  # an error that nobody waits for any more is no warning
        self._replies[identity] = task
        return task

    def prompt_ids(self, reply: Reply) -> list[int]:
        """All tokens that the choices of a reply read."""
        return [*self._record.ids_through(reply.parent), *reply.context_ids]

    def text(self, token_ids: Sequence[int]) -> str:
        return self._conversation.seam.text(token_ids)

    def was_delivered(self, reply: Reply) -> None:
        """A client has the reply, so its turns are trained."""
        for choice in reply.choices:
            self._record.turns[choice.turn].is_trained = True

    async def close(self) -> None:
        """Stop sampling, and answer no further request. Idempotent."""
        self._close()
        tasks = list(self._replies.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._earlier.num_left:
            log.info("gateway.turns_not_repeated", turns=self._earlier.num_left)

    # ── one request ─────────────────────────────────────────────────────────────────────────────

    async def _make(self, request: ChatRequest, hashes: Sequence[bytes]) -> Reply:
        found = self._lineage.find(request.messages, hashes, request.tools_key)
        if found.parent >= 0:
            self._record.turns[found.parent].is_trained = True
        try:
            place = self._place(found, request)
        except EngineError as error:
            raise Refused(400, "invalid_messages", str(error), param="messages") from error
        turns = await self._turns(place, request)
        self._count_branches(place, found, request)
        choices = [self._choice(turn, request) for turn in turns]
        for choice in choices:
            self._lineage.add(found.seen, choice.message, request.tools_key, choice.turn)
        return Reply(
            id=f"chatcmpl-{turns[0]}",
            created=int(self._clock()),
            model=request.model,
            choices=choices,
            parent=place.parent,
            context_ids=place.context_ids,
            num_prompt=self._num_through(place.parent) + len(place.context_ids),
        )

    def _place(self, found: Found, request: ChatRequest) -> Place:
        """Tokens that the policy reads. Raises `EngineError` if the chat template cannot render the messages."""
        seam = self._conversation.seam
        if found.parent == FROM_PROMPT:
            return Place(FROM_PROMPT, ())
        if found.parent == FROM_NOTHING:
            return Place(FROM_NOTHING, seam.opening(found.new, request.tools), found.cause)
        if self._as_template:
            return self._shared(found.parent, seam.opening(request.messages, request.tools))
        try:
            last_ids = self._record.turns[found.parent].completion.completion_ids
            return Place(found.parent, seam.after(found.new, last_ids))
        except EngineError:
            return Place(FROM_NOTHING, seam.opening(request.messages, request.tools), "template_differs")

    def _shared(self, parent: int, ids: list[int]) -> Place:
        """``ids`` after the last turn, from ``parent`` to the root, whose tokens they begin with."""
        places = self._record.path(parent)[::-1] + ([FROM_PROMPT] if self._record.root(parent) == FROM_PROMPT else [])
        for place in places:
            before = self._record.ids_through(place)
            if ids[: len(before)] == before:
                return Place(place, ids[len(before) :], None if place == parent else "template_differs")
        return Place(FROM_NOTHING, ids, "template_differs")

    async def _turns(self, place: Place, request: ChatRequest) -> list[int]:
        """Turns of a reply; all or none."""
        if request.n == 1:
            return [await self._turn(place, request)]
        tasks = [asyncio.create_task(self._turn(place, request)) for _ in range(request.n)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _turn(self, place: Place, request: ChatRequest) -> int:
        taken = self._earlier.take(place.parent, place.context_ids)
        if taken and taken[1].completion.finish_reason != "unfinished":
            turn = self._record.add(structs.replace(taken[1], parent=place.parent))
            self.count("replayed")
        else:
            turn = await self._sampled(place, request, taken[1] if taken else None)
            self.count("sampled")
        if taken:
            self._earlier.moved(taken[0], turn)
        self._record.turns[turn].is_trained = False  # until it is delivered
        return turn

    async def _sampled(self, place: Place, request: ChatRequest, begun: RecordedTurn | None) -> int:
        """Sample a turn; while other turns of the episode have a claim on all of its room, wait for them."""
        while True:
            try:
                turn = await self._conversation.say(
                    place.parent, place.context_ids, max_tokens=request.max_tokens, begun=begun
                )
            except EpisodeOver as over:
                if over.limit == "max_turns" or not self._conversation.running:
                    self.limit = over.limit
                    raise _over(over.limit) from over
                await self._turn_ended.wait()
                continue
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
        completion, seam = self._record.turns[turn].completion, self._conversation.seam
        said = seam.said(completion.completion_ids, completion.finish_reason)
        message = delivered(said, turn, reads_calls=request.reads_calls)
        return Choice(
            turn=turn,
            message=message,
            finish_reason=finish_reason(message, completion.finish_reason),
            token_ids=completion.completion_ids,
            logprobs=completion.behavior_logprobs,
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

    def _count_branches(self, place: Place, found: Found, request: ChatRequest) -> None:
        if place.cause:
            self.count("roots", f"root_{place.cause}")
            if place.cause != "new_root":
                log.warning("gateway.lineage_broken", cause=place.cause, messages=len(request.messages))
        same = place.parent, found.seen
        num_same = self._children[same]
        num_siblings = num_same if place.parent == FROM_NOTHING else self._num_children[place.parent]
        self._children[same] += request.n
        self._num_children[place.parent] += request.n
        for _ in range(request.n - 1 + (num_siblings > 0)):
            self.count("forks", "fork_retry" if num_same and request.n == 1 and request.seed is None else "fork_branch")


def _is_lost(task: "asyncio.Task[Reply]") -> bool:
    """True if the task ended without a reply, so that a repetition of the request begins anew."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def _over(limit: Limit) -> Refused:
    code = "context_length_exceeded" if limit == "max_tokens" else f"{limit}_exceeded"
    return Refused(400, code, f"environment.{limit} is reached: the episode has no room for another turn")


def _engine_failed(error: Exception) -> Refused:
    if isinstance(error, PromptTooLong):
        return Refused(400, "context_length_exceeded", str(error))
    may_retry = isinstance(error, EngineError) and error.retryable
    return Refused(503, "engine_failed", f"the engine could not sample: {error}", retry=may_retry)
