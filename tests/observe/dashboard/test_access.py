import pytest

from asyncrl.observe.dashboard.access import COOKIE, Access

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:8460", "127.9.9.9", "[::1]:8460", "[::1]"])
def test_without_a_token_loopback_names_are_answered(host: str) -> None:
    assert Access().accepts_host(host)
    assert Access().accepts("", "")


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8460", "10.0.0.1", "localhost.evil.example", "0.0.0.0"]
)
def test_without_a_token_other_names_are_not_answered_unless_the_host_app_says_so(host: str) -> None:
    assert not Access().accepts_host(host)
    assert Access(any_host=True).accepts_host(host)
    assert Access(TOKEN).accepts_host(host)


def test_every_request_needs_the_token_as_a_header_or_as_the_cookie_of_the_first_visit() -> None:
    access = Access(TOKEN)
    cookie = access.cookie("/dash").partition(";")[0]
    assert access.accepts(f"Bearer {TOKEN}", "")
    assert access.accepts("", f"other=1; {cookie}")
    for authorization, cookies in [
        ("", ""), (TOKEN, ""), ("Bearer", ""), ("Bearer é", ""), (f"Basic {TOKEN}", ""), ("", f"{COOKIE}={TOKEN}"),
        ("", f"{COOKIE}=é"), ("", ";;=="), ("", Access("another-token-here").cookie("").partition(";")[0]),
    ]:  # fmt: skip
        assert not access.accepts(authorization, cookies)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites_and_does_not_hold_the_token() -> None:
    cookie = Access(TOKEN).cookie("/dash")
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/dash"))
    assert TOKEN not in cookie
