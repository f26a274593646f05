"""Steps and versions that a node can report at this point of a run, whatever its code does."""

from asyncrl.config.config import Config
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import Live, Publishing, Transferred, Uploaded
from asyncrl.messages.wire import ToBroker

REPORTS = frozenset((Commit, Live, Publishing, Resumed, StepFailed, Stepped, Take, Transferred, Uploaded))
"""Messages that name a step or a version."""


class ProgressCheck:
    """Compares reports with the run's length, the batches taken so far and the versions published so far."""

    def __init__(self, config: Config) -> None:
        self._steps = config.run.steps
        self._steps_per_publish = config.schedule.steps_per_publish

    def problem_of(self, message: ToBroker, *, next_step: int, newest_version: int) -> str:
        """
        Description of a report that cannot be true; empty if it can.

        Args:
            next_step: First step whose batch was not taken yet.
            newest_version: Newest version that was offered or is live; -1 if none.
        """
        match message:
            case Take(step=step) if step > next_step or step >= self._steps:
                return f"step {step} cannot be next: the batch of step {next_step} was not taken yet"
            case Commit(step=step) | Stepped(step=step) | StepFailed(step=step) if step >= next_step:
                return f"step {step} cannot be done: the batch of step {next_step} was not taken yet"
            case Resumed(steps=done) if done > next_step:
                return f"{done} steps cannot be done: the batch of step {next_step} was not taken yet"
            case Publishing(policy_version=version, next_step=done):
                return self._publishing(version, done, next_step)
            case (
                Live(policy_version=version) | Transferred(policy_version=version) | Uploaded(policy_version=version)
            ) if version > newest_version:
                return f"version {version} does not exist: the newest is {newest_version}"
            case _:
                return ""

    def _publishing(self, version: int, done: int, next_step: int) -> str:
        if done > next_step:
            return f"version {version} cannot contain {done} steps: the batch of step {next_step} was not taken yet"
        # A trainer that resumes between two publishes offers the weights of its checkpoint under the last version.
        fewest, most = done // self._steps_per_publish, -(-done // self._steps_per_publish)
        return "" if fewest <= version <= most else f"version {version} cannot be the one after {done} steps"
