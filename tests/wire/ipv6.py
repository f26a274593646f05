"""Tells whether this machine has IPv6."""

import socket


def has_ipv6() -> bool:
    """True if ``::1`` can be bound."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
