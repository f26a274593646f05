"""Admission of groups: the next prompt, and how many groups the remaining steps still need."""

from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.retirement import Retirement
from asyncrl.broker.ledger.records import Admitted
from asyncrl.data.prompts import Draw, PromptStream
from asyncrl.errors import LedgerError


class AdmissionBook:
    """
    Makes groups in data order, of ``group_size`` sampled and ``num_greedy`` greedy trajectories.

    Their ids are dense, but for the places of prompts that are retired.
    """

    def __init__(
        self,
        prompts: PromptStream,
        group_size: int,
        num_needed: int,
        num_greedy: int = 0,
        *,
        retirement: Retirement | None = None,
    ) -> None:
        self._prompts = prompts
        self._retirement = retirement
        self._group_size = group_size
        self._num_greedy = num_greedy
        self.next_group_id = 0
        self.max_tokens = 0
        """Longest completion of the next groups; 0 takes the one of the configuration."""
        self.num_needed = num_needed
        """Groups still to be admitted, at first all that the steps consume."""

    def admit(self, policy_version: int) -> tuple[Group, Admitted]:
        """Make the next group and its record, at the live version; `RunFailed` if every prompt is retired."""
        if self._retirement:
            self._retirement.require_any()
            while self._prompts.place(self.next_group_id)[1] in self._retirement:
                self.next_group_id += 1
        draw = self._prompts.at(self.next_group_id)
        return self._group(draw, policy_version), Admitted(draw.group_id, draw.epoch, draw.row, policy_version)

    def readmit(self, record: Admitted) -> Group:
        """Make the group of a record again; raises `LedgerError` if the stream has another prompt for it now."""
        draw = self._prompts.at(record.group_id)
        if (draw.epoch, draw.row) != (record.epoch, record.row):
            raise LedgerError(
                f"group {record.group_id} was row {record.row} of epoch {record.epoch} when it was admitted, and is "
                f"row {draw.row} of epoch {draw.epoch} now: resume with the [data] and run.seed the run began with"
            )
        return self._group(draw, record.policy_version)

    def dropped(self) -> None:
        """Replace a group that will not be trained on: one more is needed."""
        self.num_needed += 1

    def _group(self, draw: Draw, policy_version: int) -> Group:
        self.next_group_id = draw.group_id + 1
        self.num_needed -= 1
        size = self._group_size + self._num_greedy
        return Group(
            draw.group_id,
            draw.prompt,
            size,
            min_version=policy_version,
            num_greedy=self._num_greedy,
            max_tokens=self.max_tokens,
            row=draw.row,
        )
