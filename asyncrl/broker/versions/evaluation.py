"""
Evaluation of held-out prompts by one rollout that is held at one version while the others swap on.

    version live, evaluation due ─▶ Hold one node ─▶ lease it every prompt, k times ─▶ graded ─▶ Evaluated, Release

`asyncrl.records.evaluation_metrics` computes the result; completions that failed for good are left out of every mean.
If the node is lost, its evaluation goes on where it stopped: on the next node that has the version, or on the same
one, if it comes back with what it has sampled before another is free. If the first free node has a newer version, the
evaluation ends without a result, and one of that version begins.
"""

from collections.abc import Sequence

from asyncrl.broker.groups.group import Group, GroupBook, Slot, SlotState
from asyncrl.broker.leases.lease import WaitingGroups
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.records.evaluation_metrics import EvaluatedCompletion, EvaluatedPrompt, compute_metrics, named_metrics


class OngoingEvaluation:
    """The evaluation of one version on one node, with one held-out group per prompt."""

    def __init__(self, peer: str, policy_version: int, groups: list[Group]) -> None:
        self.peer = peer
        """The node; empty while none has it, because the last one is gone."""
        self.policy_version = policy_version
        self.groups = groups
        self.waiting = WaitingGroups(groups)
        """Groups with missing completions."""

    @property
    def max_tokens(self) -> int:
        """Longest completion, where a setting changed it while the run went on; 0 is as the run was started."""
        return next((group.max_tokens for group in self.groups), 0)

    def spread(self, number: int) -> list[tuple[Prompt, Slot]]:
        """At most ``number`` rewarded completions with their prompts, evenly spread over those of all groups."""
        all_slots = [(group.prompt, slot) for group in self.groups for slot in group.slots]
        count = min(number, len(all_slots))
        chosen = (all_slots[place * len(all_slots) // count] for place in range(count))
        return [(prompt, slot) for prompt, slot in chosen if slot.state is SlotState.SCORED]

    def result(self, samples: int) -> Evaluated:
        """Metrics over all groups, with ``samples`` completions of each prompt."""
        prompts = [_evaluated_prompt(group) for group in self.groups]
        overall = compute_metrics(prompts, samples)
        return Evaluated(self.policy_version, overall.accuracy, overall.num_prompts, named_metrics(prompts, samples))


class EvaluationBook:
    """
    Decides when to evaluate, and keeps the ongoing evaluation and all results. Without ``prompts`` none is due.

    ``rows`` are the dataset rows of the prompts; without them a prompt's place counts.
    """

    def __init__(
        self,
        config: Evaluation,
        prompts: Sequence[Prompt],
        final_version: int,
        groups: GroupBook,
        rows: Sequence[int] = (),
    ) -> None:
        self._config = config
        self.every_versions = config.every_versions
        self.max_tokens = 0
        """Longest completion of the next evaluations; 0 takes the one of the configuration."""
        self._prompts = prompts
        self._rows = rows or range(len(prompts))
        self._final_version = final_version
        self._groups = groups
        self._next_group_id = 0
        """Ids of held-out groups never repeat within a run."""
        self._last_version = -1
        self._due: int | None = None
        """Newest version whose evaluation is due; None if none is."""
        self.ongoing: OngoingEvaluation | None = None
        self.results: list[Evaluated] = []
        self._finished: list[OngoingEvaluation] = []
        self._abandoned: list[Group] = []

    @property
    def is_finished(self) -> bool:
        return self.ongoing is None and self._due is None

    @property
    def is_waiting(self) -> bool:
        """True if an evaluation is due, or goes on, and needs a node."""
        return self._due is not None if self.ongoing is None else not self.ongoing.peer

    @property
    def measurements(self) -> list[Evaluated]:
        """Results, without those of evaluations in which every prompt failed."""
        return [result for result in self.results if result.num_prompts]

    @property
    def base(self) -> Evaluated | None:
        """Result before the first step; None if it was not measured."""
        return next((result for result in self.measurements if result.policy_version == 0), None)

    @property
    def base_accuracy(self) -> float | None:
        """Accuracy before the first step; None if it was not measured."""
        return self.base.accuracy if self.base else None

    def waiting(self) -> list[int]:
        """Versions of which an evaluation is due, or goes on without a node."""
        begun = [self.ongoing.policy_version] if self.ongoing and not self.ongoing.peer else []
        return begun + ([] if self._due is None else [self._due])

    def version_live(self, policy_version: int) -> int | None:
        """
        Decide if an evaluation is due at this version, or at an earlier one that a broker died before recording.

        Returns the version whose evaluation this one takes the place of, because no node had time for it.
        """
        every, last = self.every_versions, max(self._last_version, 0)
        self._last_version = policy_version
        wanted = (
            (policy_version == 0 and self._config.at_start)
            or (policy_version == self._final_version and self._config.at_end)
            or (every and policy_version < self._final_version and policy_version // every > last // every)
        )
        if not (wanted and self._prompts):
            return None
        left_out, self._due = self._due, policy_version
        return left_out

    def ends_at(self, final_version: int) -> None:
        """The run ends with this version, earlier than it was to. If it is live by now, it may have to be evaluated."""
        self._final_version = final_version
        known = self.ongoing.policy_version if self.ongoing else self.results[-1].policy_version if self.results else -1
        if self._config.at_end and self._last_version == final_version > known:
            self._due = final_version

    def start(self, peer: str, policy_version: int) -> OngoingEvaluation | None:
        """Start the evaluation that is due, or go on with one, on this node; None if none needs a node."""
        if not self.is_waiting:
            return None
        if self.ongoing and self.ongoing.policy_version == policy_version:
            self.ongoing.peer = peer
            return self.ongoing
        if self.ongoing:
            self._abandoned += self.ongoing.groups
            self._groups.held_out.clear()
        groups = [
            Group(
                self._next_group_id + i,
                prompt,
                self._config.samples,
                min_version=policy_version,
                split="held_out",
                max_tokens=self.max_tokens,
                row=self._rows[i],
            )
            for i, prompt in enumerate(self._prompts)
        ]
        self._next_group_id += len(groups)
        for group in groups:
            self._groups.add(group)
        self._due = None
        self.ongoing = OngoingEvaluation(peer, policy_version, groups)
        return self.ongoing

    def settle(self, unit: Unit, *, failed: bool) -> Evaluated | None:
        """Close a completion that was rewarded or failed for good. Returns the result if it was the last one."""
        if self.ongoing is None or (group := self._groups.group(unit)) is None:
            return None
        if failed:
            group.slots[unit.index].give_up()
        if all(slot.state in (SlotState.SCORED, SlotState.GIVEN_UP) for slot in group.slots):
            self._groups.remove(group)
        if self._groups.held_out:
            return None
        result = self.ongoing.result(self._config.samples)
        self._finished.append(self.ongoing)
        self.ongoing = None
        self.measured(result)
        return result

    def take_finished(self) -> list[OngoingEvaluation]:
        """Return the evaluations that have ended with a result since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def measured(self, result: Evaluated) -> None:
        """Keep the result of an evaluation, of this broker or of an earlier one."""
        self.results.append(result)
        if self._due is not None and self._due <= result.policy_version:
            self._due = None

    def used(self, group_id: int) -> None:
        """Reserve the id of a held-out group that an earlier life of the broker used."""
        self._next_group_id = max(self._next_group_id, group_id + 1)

    def departed(self, peer: str) -> OngoingEvaluation | None:
        """
        Take the evaluation of a node that is gone or stalled. Returns it, as it needs another node; None if it had
        none.
        """
        lost = self.ongoing if self.ongoing and self.ongoing.peer == peer else None
        if lost:
            lost.peer = ""
        return lost

    def returned(self, peer: str, oldest_version: int) -> bool:
        """
        Let a node go on with the evaluation of which it still samples a completion since an earlier session.

        True if that is one of an evaluation without a node, or of its own, of the version that the evaluation is of:
        the node then has the evaluation.
        """
        ongoing = self.ongoing
        if ongoing is None or ongoing.peer not in ("", peer) or oldest_version != ongoing.policy_version:
            return False
        ongoing.peer = peer
        return True

    def take_abandoned(self) -> list[Group]:
        """Groups of evaluations that have ended without a result since the last call."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned


def _evaluated_prompt(group: Group) -> EvaluatedPrompt:
    completions = [
        EvaluatedCompletion(
            reward=slot.reward,
            correct=slot.correct,
            answer=slot.answer,
            num_tokens=slot.summary.num_tokens,
            is_cut=slot.summary.finish_reason == "length",
        )
        for slot in group.slots
        if slot.state is SlotState.SCORED and slot.summary
    ]
    num_failed = group.size - len(completions)
    return EvaluatedPrompt(data_source=group.prompt.data_source, completions=completions, num_failed=num_failed)
