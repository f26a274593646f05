"""`asyncrl doctor --probe`: answers one question of `asyncrl doctor --cluster` about this machine."""

import errno
from typing import BinaryIO

import msgspec

from asyncrl.node.machine.cluster.facts import look, reason_of
from asyncrl.node.machine.cluster.probe_messages import Answer, Listen, Listening, Look, Question, Send, Unable
from asyncrl.node.machine.cluster.transfer import listen, send


def answer(questions: BinaryIO, answers: BinaryIO) -> None:
    """Read one line with a `Question` and write one with an `Answer`. A listener ends with its input, too."""

    def say(message: Answer) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    try:
        match msgspec.json.decode(questions.readline(), type=Question):
            case Look() as request:
                say(look(request))
            case Listen() as request:
                listen(request, lambda port: say(Listening(port=port)), questions.fileno())
            case Send() as request:
                say(send(request))
    except msgspec.DecodeError as error:
        say(Unable(reason=f"asyncrl here does not understand the question ({error}): install the same version"))
    except OSError as error:
        say(Unable(reason=reason_of(error), address_in_use=error.errno == errno.EADDRINUSE))
