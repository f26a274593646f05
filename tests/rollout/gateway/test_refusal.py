import msgspec

from asyncrl.rollout.gateway.refusal import Refused


def test_the_body_has_the_form_of_openais_errors() -> None:
    error = {"message": "n is 0", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}
    assert msgspec.json.decode(Refused(400, "invalid_request", "n is 0", param="n").body) == {"error": error}


def test_a_fault_of_the_server_is_called_so() -> None:
    assert msgspec.json.decode(Refused(503, "busy", "later").body)["error"]["type"] == "server_error"


def test_clients_are_told_whether_to_retry() -> None:
    assert Refused(503, "a", "b").headers == []
    assert Refused(503, "a", "b", retry=False).headers == [(b"x-should-retry", b"false")]
    assert Refused(503, "a", "b", retry=True).headers == [(b"x-should-retry", b"true")]
