"""
Rules about who may see a dashboard.

    no token     requests to a loopback name only, so that no page elsewhere can read it through a name of its own
    token        every request carries it: `Authorization: Bearer`, or a cookie set by the first visit with ``?token=``
"""

import hashlib
import secrets
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address

COOKIE = "asyncrl_dashboard"
REFUSED_HOST = (
    "this dashboard answers to a loopback name only, such as localhost; start it with a token to reach it by another"
)
REFUSED_TOKEN = "this dashboard needs its token: open the address that was printed with ?token=..."


class Access:
    """
    Rules for one dashboard.

    Args:
        token: Empty: none is needed.
        any_host: Without a token, accept requests to any name: the application that mounts this one has checked them.
    """

    def __init__(self, token: str = "", *, any_host: bool = False) -> None:
        self._token = token
        self._any_host = any_host
        self._cookie = hashlib.sha256(f"{COOKIE}:{token}".encode()).hexdigest()

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def accepts_host(self, host: str) -> bool:
        """True if a request may name ``host`` (with or without a port); a token makes up for any name."""
        return self.needs_token or self._any_host or _is_loopback(host)

    def accepts_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="replace"), self._token.encode())

    def accepts(self, authorization: str, cookies: str) -> bool:
        """True if the headers ``authorization`` and ``cookie`` of a request carry the token, or none is needed."""
        if not self.needs_token:
            return True
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.accepts_token(key.strip()):
            return True
        return secrets.compare_digest(_cookie(cookies).encode(errors="replace"), self._cookie.encode())

    def cookie(self, path: str) -> str:
        """Header ``set-cookie`` after the right token; scripts cannot read it, and it goes to no other site."""
        return f"{COOKIE}={self._cookie}; Path={path or '/'}; HttpOnly; SameSite=Strict"


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
