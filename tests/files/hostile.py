"""Files that a careless or hostile hand could leave, and what a process of its own makes of each."""

import json
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.errors import AsyncrlError, ConfigError
from tests.config.model.directories import shapes_of, write_model, write_safetensors

LIMIT_S = 10
LIMIT_BYTES = 1 << 30
Make = Callable[[Path], object]
"""Function that makes a file in place of the one that is there."""

# ── outcomes ──────────────────────────────────────────────────────────────────────────────────


class Outcome(msgspec.Struct):
    """End of a read: the sentence of a refusal, the traceback of another exception, or neither."""

    exit_code: int
    sentence: str = ""
    trace: str = ""
    seconds: float = 0.0
    peak_mb: int = 0

    def is_refusal(self) -> bool:
        one_line = "\n" not in self.sentence.removeprefix("20 mistakes:").strip().replace("\n  unknown key", "")
        return self.exit_code == ConfigError.exit_code and bool(self.sentence) and one_line


def apart(make: Make, path: Path) -> None:
    """Make a file in a child, whose memory ends with it."""
    if not (pid := os.fork()):
        make(path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def outcome(read: Callable[[], object]) -> Outcome:
    """Call ``read`` in a child, which may take `LIMIT_S` of a core and `LIMIT_BYTES` more than there are now."""
    reader, writer = os.pipe()
    began, before = time.monotonic(), int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if not (pid := os.fork()):
        os.write(writer, msgspec.json.encode(_outcome_here(read)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status, used = os.wait4(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    found = msgspec.json.decode(told, type=Outcome) if told else Outcome(ended, trace=f"ended with {ended}")
    found.seconds, found.peak_mb = round(time.monotonic() - began, 2), ((used.ru_maxrss << 10) - before) >> 20
    return found


def _outcome_here(read: Callable[[], object]) -> Outcome:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(3 * LIMIT_S)  # it waits for something; the machine may be busy
    limit = 8 << 30
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S + int(time.process_time()), limit))
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT_BYTES, used + LIMIT_BYTES))
    try:
        read()
    except AsyncrlError as error:
        return Outcome(error.exit_code, str(error))
    except BaseException:  # noqa: BLE001  whatever it is, it is told
        return Outcome(70, trace=traceback.format_exc()[-2000:])
    return Outcome(0)


# ── what is no regular file ───────────────────────────────────────────────────────────────────


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def looping(path: Path) -> None:
    path.symlink_to(path.name)


def linked(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def holding(content: bytes | str) -> Make:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


ODD: dict[str, Make] = {
    "pipe": os.mkfifo,
    "device": linked("/dev/zero"),
    "folder": Path.mkdir,
    "socket": a_socket,
    "loop": looping,
    "terabyte": sparse,
}
OUTSIDE: dict[str, Make] = {"outside": linked("/etc/passwd"), "parent": linked("../other.safetensors")}
NESTED = "[" * 100_000 + "]" * 100_000
TEXTS: dict[str, Make] = {
    "utf16": holding("{}".encode("utf-16")),
    "nul": holding(b"\0" * 100),
    "latin1": holding(b'{"a": "caf\xe9"}'),
    "half": holding('{"a": "\\ud800"}'),
}
JSON: dict[str, Make] = ODD | TEXTS | {
    "deep list": holding(NESTED),
    "deep object": holding('{"a":' * 100_000 + "1" + "}" * 100_000),
    "digits": holding('{"a": ' + "9" * 200_000 + "}"),
    "exponent": holding('{"a": 1e999}'),
    "a list": holding("[]"),
    "a number": holding("1"),
    "empty": holding(""),
    "yaml": holding("a: 1\nb: &x [*x]\n"),
    "unicode digit": holding('{"a": \u0661}'),
    "terminal": holding('{"\x1b[2J": '),
}  # fmt: skip
TOML: dict[str, Make] = ODD | TEXTS | {
    "deep": holding("a = " + "[" * 50_000 + "]" * 50_000),
    "deep table": holding("a = " + "{a = " * 5000 + "1" + "}" * 5000),
    "digits": holding("a = " + "9" * 200_000),
    "hexadecimal": holding("a = 0x" + "f" * 200_000),
    "parts": holding(".".join("a" * 50_000) + " = 1"),
    "quoted parts": holding(" . ".join(['"a"'] * 20_000) + " = 1"),
    "parts of a table": holding(f"[{'.'.join('a' * 50_000)}]"),
    "many unknown": holding("".join(f"key{number} = 1\n" for number in range(50_000))),
    "long key": holding("a" * 900_000 + " = 1"),
    "long value": holding(f'run = "{"a" * 900_000}"'),
    "long": holding("# a\n" * 500_000),
    "twice": holding("a = 1\na = 2"),
    "terminal": holding('"\\u001b[2J" = 1'),
    "unclosed": holding('"\\' * 400_000),
}  # fmt: skip

# ── datasets ──────────────────────────────────────────────────────────────────────────────────

ROW = '{"prompt": "?", "answer": "1", "extra": '


def longer(path: Path) -> None:
    path.write_text(ROW + "1}\n")
    os.truncate(path, 2**40)


JSONL: dict[str, Make] = ODD | {
    "utf16": TEXTS["utf16"],
    "nul": TEXTS["nul"],
    "latin1": TEXTS["latin1"],
    "half": TEXTS["half"],
    "empty": holding(""),
    "deep": holding(f"{ROW}{NESTED}}}\n"),
    "digits": holding(ROW + "9" * 200_000 + "}\n"),
    "exponent": holding(ROW + "1e999}\n"),
    "long line": holding(ROW + '"' + "a" * (33 << 20) + '"}\n'),
    "lists": holding(ROW + "[" + "[]," * 5_000_000 + "[]]}\n"),
    "many keys": holding("".join(f'{{"key{number}": 1}}\n' for number in range(50_000))),
    "zeros behind a row": longer,
}  # fmt: skip


def parquet(**columns: Any) -> Make:
    def make(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: column(pa) for name, column in columns.items()}), path, compression="zstd")

    return make


def damaged(path: Path) -> None:
    parquet(prompt=lambda pa: pa.array(["a"] * 1000))(path)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)


PARQUET: dict[str, Make] = {
    "one value many times": parquet(
        prompt=lambda pa: pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 1_000_000])
    ),
    "one long value": parquet(prompt=lambda pa: pa.array(["a" * 400_000_000])),
    "many nulls": parquet(prompt=lambda pa: pa.nulls(30_000_000, pa.string())),
    "no rows": parquet(prompt=lambda pa: pa.array([], pa.string())),
    "beginning alone": holding(b"PAR1"),
    "both ends": holding(b"PAR1PAR1"),
    "endless footer": holding(b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7fPAR1"),
    "damaged": damaged,
}

# ── models ────────────────────────────────────────────────────────────────────────────────────


def replaced(name: str, make: Make) -> Make:
    """A whole model, one file of which is replaced."""

    def make_model(path: Path) -> None:
        (write_model(path) / name).unlink(missing_ok=True)
        write_safetensors(path.parent / "other.safetensors", shapes_of())
        make(path / name)

    return make_model


def said(**config: Any) -> Make:
    return lambda path: write_model(path, **config)


def header(change: Callable[[dict[str, Any]], object] = lambda _: None, raw: bytes = b"", length: int = 0) -> Make:
    """A model whose safetensors has another header, or ``raw`` in its place, which claims to be so long."""

    def make_model(path: Path) -> None:
        file = write_model(path) / "model.safetensors"
        content = file.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        found = json.loads(content[8:end])
        change(found)
        text = raw or json.dumps(found).encode()
        file.write_bytes((length or len(text)).to_bytes(8, "little") + text + content[end:])

    return make_model


def same_offsets(found: dict[str, Any]) -> None:
    names = [name for name in found if name != "__metadata__"]
    found[names[2]]["data_offsets"] = found[names[1]]["data_offsets"]


def of_first(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda found: found[next(name for name in found if name != "__metadata__")].update(values)


def indexed(index: Any) -> Make:
    def make_model(path: Path) -> None:
        (write_model(path) / "model.safetensors").rename(path / "part.safetensors")
        write_safetensors(path.parent / "other.safetensors", shapes_of())
        content = index if isinstance(index, str) else json.dumps({"weight_map": index})
        (path / "model.safetensors.index.json").write_text(content)

    return make_model


SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json")
SIZES = ("num_hidden_layers", "hidden_size", "n_routed_experts", "intermediate_size", "head_dim", "num_heads")
MODELS: dict[str, Make] = {
    **{
        f"{name} {kind}": replaced(name, make)
        for name in SMALL
        for kind, make in (JSON | OUTSIDE).items()
        if name == "config.json" or kind != "loop"  # then the file is missing, and others may be
    },
    **{
        f"{name} {kind}": replaced(name, make)
        for name, cases in (("model.safetensors", ODD | TEXTS | OUTSIDE), ("chat_template.jinja", ODD | OUTSIDE))
        for kind, make in cases.items()
        if name == "model.safetensors" or kind != "loop"
    },
    **{f"{key} {number}": said(**{key: number}) for key in SIZES for number in (10**9, 10**30)},
    "nested layers": said(text_config={"vision_config": {"depth": 10**9}}),
    "overlap": header(same_offsets),
    "hole": header(of_first(data_offsets=[8, 128])),
    "too short": header(of_first(data_offsets=[0, 4])),
    "backwards": header(of_first(data_offsets=[128, 0])),
    "negative": header(of_first(shape=[-8, 4])),
    "huge shape": header(of_first(shape=[2**62] * 16)),
    "many dimensions": header(of_first(shape=[2] * 100_000)),
    "unknown dtype": header(of_first(dtype="F31")),
    "strange dtype": header(of_first(dtype=["F32"])),
    "offsets as texts": header(of_first(data_offsets=["0", "128"])),
    "header of a list": header(raw=b"[]"),
    "deep header": header(raw=b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep metadata": header(raw=b'{"__metadata__":' + NESTED.encode() + b"}"),
    "endless header": header(length=2**62),
    "long header": header(raw=b'{"a": "' + b" " * (20 << 20) + b'"}'),
    "index outside": indexed({"a": "../other.safetensors"}),
    "index absolute": indexed({"a": "/etc/passwd"}),
    "index nul": indexed({"a": "a\0b"}),
    "index long": indexed({"a": "a" * 5000}),
    "index device": indexed({"a": "../../../../../../../../dev/zero"}),
    "index itself": indexed({"a": "model.safetensors.index.json"}),
    "index numbers": indexed({"a": 1}),
    "index deep": indexed('{"weight_map": ' + NESTED + "}"),
    "index missing": indexed({str(number): f"{number}.safetensors" for number in range(100_000)}),
    "index empty": indexed({}),
}  # fmt: skip
