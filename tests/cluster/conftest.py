"""Skips tests that need a network of machines where the host permits none."""

import pytest

from tests.cluster.network import obstacle


@pytest.fixture(scope="session")
def machines_permitted() -> None:
    """Skip the test, with the reason, if this host cannot have machines with lossy lines."""
    if reason := obstacle(lines=True):
        pytest.skip(f"this host cannot have a network of machines: {reason}")
