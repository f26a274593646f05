"""
Routing ids: names of links at a ROUTER socket, each with a token that only the hub learns.

ROUTER_HANDOVER gives a routing id to whoever names it last, and peers know each other's names.
"""

import secrets

TOKEN_MARK = "~"
TOKEN_BYTES = 8


def routing_id(name: str) -> bytes:
    """Routing id of a link with this name at the hub."""
    return f"{name}{TOKEN_MARK}{secrets.token_hex(TOKEN_BYTES)}".encode()


def peer_name(routing_id: bytes) -> str:
    """Name of the link with this routing id."""
    name, mark, _ = routing_id.decode(errors="replace").rpartition(TOKEN_MARK)
    return name if mark else routing_id.decode(errors="replace")
