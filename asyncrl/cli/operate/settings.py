"""`asyncrl set`: changes live settings of a running run; the broker checks them with all others."""

from collections.abc import Sequence

from asyncrl.cli.operate.session import operator
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError
from asyncrl.messages.supervisor import SetSettings, SettingsChanged


async def set_settings(run: RunAddress, assignments: Sequence[str]) -> list[str]:
    """
    Set ``KEY=VALUE`` texts, and return a line for each change once it is on disk.

    Raises:
        ConfigError: The broker refuses one of them, and has changed nothing.
        LinkError: The broker does not answer.
    """
    async with operator(run) as session:
        # Changes of others are told to every supervisor.
        question, name = SetSettings(list(assignments)), session.name
        changed = await session.ask(question, SettingsChanged, is_answer=lambda told: told.by == name)
    if changed.problem:
        raise ConfigError(changed.problem)
    if not changed.values:
        return ["nothing changed: the run has these values already"]
    return [f"{key} = {value} from now on" for key, value in changed.values.items()]
