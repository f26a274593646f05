"""The environments that a run file names."""

from contextlib import AbstractAsyncContextManager

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import Environments
from asyncrl.environment.pool import EnvironmentPool
from asyncrl.environment.program import Programs


def make_environments(environment: Environment, run_id: str, node: str) -> AbstractAsyncContextManager[Environments]:
    """
    Workers, or agent programs: a context that starts them, and ends them with all that they have started.

    Raises:
        ConfigError: ``environment.command`` is no program, or none that the operator of this node allowed. Entering
            the context raises it if the environment cannot be loaded.
    """
    return Programs(environment, run_id) if environment.command else EnvironmentPool(environment, run_id, node)
