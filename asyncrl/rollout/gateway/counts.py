"""Counts of one episode, or of all of a node: roots and forks by cause, and what else happened to requests."""

from collections import Counter

from asyncrl.rollout.gateway.lineage import RootCause

ALARMING: tuple[RootCause, ...] = ("edited_reply", "edited_history", "tools_changed", "template_differs")
"""Causes of roots that a program does not intend, as a rule: each makes a branch of what could be one."""


class Counts(Counter[str]):
    """
    ``sampled``, ``replayed``, ``repeats``, ``roots``, ``root_CAUSE``, ``forks``, ``fork_retry``, ``fork_branch``,
    ``undelivered``, ``refused_CODE``.

    A fork is a turn whose parent has another child: ``retry`` if the program sent the same messages again, with another
    limit for example, ``branch`` if it sent others, another seed, or asked for several choices. A repeat is a request
    that has its reply already, and gets the same.
    """

    @property
    def scores(self) -> dict[str, float]:
        """Metrics of an episode, for `Trajectory.scores`."""
        broken = sum(self[f"root_{cause}"] for cause in ALARMING)
        return {"forks": float(self["forks"]), "roots": float(self["roots"]), "broken_lineage": float(broken)}
