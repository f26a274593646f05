"""Texts that would reveal a private key."""

import base64

from zmq.utils import z85

from asyncrl.wire.keys.key import Key


def forms_of(key: Key) -> list[str]:
    """First half of a private key in every form that a program may print, so that a shortened one is found too."""
    half = key.private[:16]
    return [
        half.hex(),
        half.hex().upper(),
        z85.encode(key.private).decode()[:20],
        base64.b64encode(key.private).decode()[:20],
        repr(half)[2:-1],
    ]
