"""
Held-out prompts, answered by one rollout held at one version while the others go on.

    version live, evaluation due ─▶ Hold one node ─▶ lease it every prompt, k times ─▶ graded ─▶ Evaluated, Release

What the answers are worth together is in `metrics`; a completion that failed for good is in no mean. A
lost node ends an evaluation without a result; it starts anew on another node, at the version that one has.
"""

from collections.abc import Sequence

from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.leases.waiting import WaitingGroups
from asyncrl.config.sections import Evaluation
from asyncrl.evaluation.metrics import EvaluatedCompletion, EvaluatedPrompt, evaluation_metrics, named
from asyncrl.messages import Evaluated, Prompt, Unit


class OngoingEvaluation:
    """One evaluation under way."""

    def __init__(self, peer: str, policy_version: int, groups: list[Group]) -> None:
        self.peer = peer
        self.policy_version = policy_version
        self.waiting = WaitingGroups(groups)
        """To be leased."""
        self.open = {group.group_id: group for group in groups}
        """With completions that have no verdict yet."""
        self._groups = groups

    def result(self, samples: int) -> Evaluated:
        """What came out, of so many completions of each prompt."""
        questions = [_question(group) for group in self._groups]
        overall = evaluation_metrics(questions, samples)
        return Evaluated(self.policy_version, overall.accuracy, overall.num_prompts, named(questions, samples))


class EvaluationBook:
    """When to evaluate, and the one that is under way. Ids of held-out groups never repeat within a run."""

    def __init__(self, config: Evaluation, prompts: Sequence[Prompt], final_version: int) -> None:
        self._config = config
        self._prompts = prompts
        self._final_version = final_version
        self._next_group_id = 0
        self._last_version = -1
        """That went live."""
        self._due: int | None = None
        """The newest version that is owed an evaluation, if any is."""
        self.ongoing: OngoingEvaluation | None = None
        self.results: list[Evaluated] = []

    @property
    def is_finished(self) -> bool:
        """Nothing under way and nothing owed: the run may end."""
        return self.ongoing is None and self._due is None

    @property
    def is_waiting(self) -> bool:
        """One is owed and none is under way: a node is wanted."""
        return self._due is not None and self.ongoing is None

    def version_live(self, policy_version: int) -> None:
        """
        A version went live: is it one to evaluate?

        Or was there one since the last that went live? A broker that died may not have written that down.
        """
        every, last = self._config.every_versions, max(self._last_version, 0)
        self._last_version = policy_version
        wanted = (
            (policy_version == 0 and self._config.at_start)
            or (policy_version == self._final_version and self._config.at_end)
            or (every and policy_version < self._final_version and policy_version // every > last // every)
        )
        if wanted and self._prompts:
            self._due = policy_version

    def start(self, peer: str, policy_version: int) -> OngoingEvaluation | None:
        """Begin on this node if an evaluation is due and none is under way."""
        if not self.is_waiting:
            return None
        groups = [
            Group(self._next_group_id + i, prompt, self._config.samples, min_version=policy_version, split="held_out")
            for i, prompt in enumerate(self._prompts)
        ]
        self._next_group_id += len(groups)
        self._due = None
        self.ongoing = OngoingEvaluation(peer, policy_version, groups)
        return self.ongoing

    def group(self, group_id: int) -> Group | None:
        """An open group of the evaluation under way."""
        return self.ongoing.open.get(group_id) if self.ongoing else None

    def settle(self, unit: Unit, *, failed: bool) -> Evaluated | None:
        """One completion has its verdict, or never will; the result, if it was the last."""
        if self.ongoing is None or (group := self.group(unit.group_id)) is None:
            return None
        if failed:
            group.slots[unit.index].give_up()
        if all(slot.state in (State.SCORED, State.GIVEN_UP) for slot in group.slots):
            del self.ongoing.open[unit.group_id]
        if self.ongoing.open:
            return None
        result = self.ongoing.result(self._config.samples)
        self.ongoing = None
        self.measured(result)
        return result

    def measured(self, result: Evaluated) -> None:
        """An evaluation has ended, now or in an earlier life of the broker."""
        self.results.append(result)
        if self._due is not None and self._due <= result.policy_version:
            self._due = None

    def used(self, group_id: int) -> None:
        """A group of an earlier life of the broker: its id is not given again."""
        self._next_group_id = max(self._next_group_id, group_id + 1)

    def left(self, peer: str) -> OngoingEvaluation | None:
        """A node is gone; the evaluation it had in hand is owed again."""
        lost = self.ongoing if self.ongoing and self.ongoing.peer == peer else None
        if lost:
            self.ongoing = None
            self._due = max(lost.policy_version, self._due or 0)
        return lost


def _question(group: Group) -> EvaluatedPrompt:
    answers = [
        EvaluatedCompletion(
            reward=slot.reward,
            correct=slot.metrics.get("correct", slot.reward),
            text=slot.answer,
            num_tokens=slot.summary.num_tokens,
            is_cut=slot.summary.finish_reason == "length",
        )
        for slot in group.slots
        if slot.state is State.SCORED and slot.summary
    ]
    return EvaluatedPrompt(data_source=group.prompt.data_source, answers=answers, num_failed=group.size - len(answers))
