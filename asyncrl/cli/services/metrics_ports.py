"""Metrics of the services of one machine: each has a port of its own, one after the other in the order of the roles."""

from collections.abc import Sequence

from asyncrl.node.process.metrics_server import MetricsOptions


def told(options: MetricsOptions, roles: Sequence[str]) -> str:
    """Address of each of ``roles`` in words, and the first port of the replicas."""
    addresses = [f"{role} {options.of_child(number).address}" for number, role in enumerate(roles)]
    if options.port and "rollout" in roles:
        addresses.append(f"its replicas from {options.port + len(roles)} on")
    return ", ".join(addresses)


def metrics_by_role(options: MetricsOptions | None, roles: Sequence[str]) -> dict[str, dict[str, str]]:
    """
    Environment variables for each of ``roles``; none without ``options``, the address of the first.

    Rollouts come last: the process that starts them takes a port, and each of them the next.
    """
    return {role: options.of_child(number).as_variables() for number, role in enumerate(roles)} if options else {}
