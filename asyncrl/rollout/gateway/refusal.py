"""An answer other than 200, in the form of OpenAI's errors."""

import msgspec


class Refused(Exception):
    """
    The request is not answered with a completion.

    Args:
        code: Short name of the cause, for programs.
        message: One sentence for people.
        param: Field of the request that is to blame.
        retry: Tells clients whether to try again; None leaves it to the status.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry

    @property
    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Header that OpenAI's clients obey before the status."""
        return [] if self.retry is None else [(b"x-should-retry", b"true" if self.retry else b"false")]
