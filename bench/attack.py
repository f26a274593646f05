"""
An honest run whose broker is attacked by processes that do not know its secret, or that hold a key for rewards.

    python bench/attack.py [--keys] [--cases mutated,dealers,...] [--seconds 1.5] [--rounds 3] [--directory DIR]

    mutated     mutated frames by plain TCP, a thousand in each connection
    dealers     ZeroMQ DEALERs without a mechanism, with PLAIN, and with a wrong CURVE key
    oversize    frames that announce 2^62 bytes
    unfinished  handshakes of 4 MiB, all but the last byte, on 400 connections at once
    multipart   messages of many frames that never end
    replay      the bytes of an honest node's session, recorded between it and the broker
    idle        1,000 connections that say nothing
    flood       connections that are closed after the greeting

With ``--keys`` the broker has an allow-list, and every attacker knows its public key:

    unlisted    handshakes with keys that are not allowed
    roles, small, hellos, giant, unended, sessions, hijack, puts
                holders of a key for rewards (holders.py)

The attacker turns from the broker to a sink and back (strangers.py). ``ratio`` is the honest rate while the broker is
attacked, divided by the rate while the sink is: both share the machine's cores with the attacker. The goal is 0.8.
``changed`` counts records and events of any node that is not an honest one, refused messages, honest nodes that were
lost, and findings of the audit of the ledger; it must be 0. A holder of a key may join under its own name, and what it
sends is refused: ``refused`` has the counts.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import holders
import msgspec
import smoke
import strangers
from keyed import KeyedProcesses
from ours.durable import PATIENCE_S, start_broker
from processes import MAIN, Processes, free_address
from strangers import Window

from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import NodeEvent
from asyncrl.config.run_file import load_config
from asyncrl.records.run_directory import RunDirectory
from asyncrl.wire.handshake import identity, join, leave
from asyncrl.wire.run_address import RunAddress, find_run

GOAL = 0.8
WITNESS = "witness"
BATCH = 16
WARM_TRAJECTORIES = 1000
GROUPS_PER_STEP = 16
KEYS = {**dict.fromkeys(("reward", WITNESS, holders.LOW), "reward"), "producer": "rollout", "consumer": "trainer"}
"""Role of each key by name."""


async def main(options: argparse.Namespace) -> int:
    missed = 0
    for case in options.cases:
        async with _processes(options) as processes:
            line = await _case(processes, case, options)
        missed += (line["ratio"] < GOAL and not options.smoke) or line["changed"] != 0
        print(json.dumps({"bench": "attack", "case": case, **line}, ensure_ascii=False), flush=True)
    return missed


def _processes(options: argparse.Namespace) -> Processes:
    return KeyedProcesses(options.directory, KEYS) if options.keys else Processes(options.directory)


async def _case(processes: Processes, case: str, options: argparse.Namespace) -> dict[str, Any]:
    sink_port, spool_address = _port(free_address()), free_address()
    command = (str(MAIN), "--child", "strangers", "broker", str(sink_port))
    broker_options, key = [], None
    if isinstance(processes, KeyedProcesses):
        key = processes.folder.node_file(WITNESS)
        broker_options = ["--keys", str(processes.folder.path), "--set", f'broker.spool_bind="{spool_address}"']
    pid, address = await start_broker(
        processes, groups_per_step=GROUPS_PER_STEP, command=command, options=broker_options
    )
    (processes.path / "recorded.bin").write_bytes(msgspec.msgpack.encode(await _recorded(address, key)))
    await processes.start("ours.durable", "reward", address)
    await processes.start("ours.durable", "produce", address, BATCH)
    await processes.start("strangers", "consume", address, processes.path / "count")
    await asyncio.wait_for(_working(processes.path / "count"), PATIENCE_S)
    before_kib = strangers.memory_kib(pid)
    attacker = await processes.start(
        "strangers",
        "attack",
        case,
        f"{sink_port},{_port(spool_address if case == 'puts' else address)}",
        options.seconds,
        options.rounds,
        pid,
        processes.path,
    )
    windows = await processes.result(attacker, list[Window], PATIENCE_S + 4 * options.seconds * options.rounds)
    await asyncio.sleep(1.0)
    after_kib = strangers.memory_kib(pid)
    on_sink, on_broker = ([w for w in windows if w.victim == victim] for victim in ("sink", "broker"))
    rates = [median(w.trajectories_per_s for w in some) for some in (on_broker, on_sink)]
    return {
        "ours": round(rates[0]),
        "unit": "trajectories/s",
        "peer": "the same attack on a socket that is not ours",
        "peer_value": round(rates[1]),
        "ratio": round(rates[0] / rates[1], 2),
        "better": "higher",
        "goal": GOAL,
        "frames": sum(w.num for w in on_broker),
        "rss_mib": [round(kib / 1024) for kib in (before_kib, max(w.peak_kib for w in on_broker), after_kib)],
        "peak_mib_attacked_elsewhere": round(max(w.peak_kib for w in on_sink) / 1024),
        "broker_cores": [round(median(w.broker_cpu for w in some), 2) for some in (on_broker, on_sink)],
        "changed": _changed(RunDirectory(processes.path / "run"), has_holder=case in holders.KINDS),
        "refused": _refused(RunDirectory(processes.path / "run"), processes.path / "broker.log"),
        "rounds": [round(w.trajectories_per_s) for w in on_broker],
        "peer_rounds": [round(w.trajectories_per_s) for w in on_sink],
    }


async def _recorded(address: str, key: Path | None) -> list[bytes]:
    """Chunks that an honest node sends from its greeting to its Bye, as a proxy between it and the broker sees them."""
    chunks: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", _port(address))

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, *, keep: bool) -> None:
            while data := await source.read(65536):
                if keep:
                    chunks.append(data)
                to.write(data)
            to.close()

        await asyncio.gather(pump(reader, back, keep=True), pump(there, writer, keep=False), return_exceptions=True)

    run = await find_run(address, key, PATIENCE_S)
    await asyncio.wait_for(_listening(_port(address)), PATIENCE_S)
    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    through = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link, _ = await join(RunAddress(through, run.credentials_file), identity("reward", WITNESS), PATIENCE_S)
    await leave(link, "recorded")
    server.close()
    return chunks


async def _listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def _working(count: Path) -> None:
    while strangers.read_count(count)[0] < WARM_TRAJECTORIES:  # noqa: ASYNC110  another process writes the file
        await asyncio.sleep(0.1)


def _changed(directory: RunDirectory, *, has_holder: bool) -> int:
    """Traces of anybody but the honest nodes, refused messages, lost nodes, and problems of the ledger."""
    honest = {*strangers.HONEST, WITNESS}
    events = [e for e in directory.read_events() if not (has_holder and _is_of_holder(e))]
    foreign = [
        e
        for e in events
        if e.get("node", WITNESS) not in honest or e["event"] in ("units.failed", "node.rejected", "node.lost")
    ]
    records = list(read_records(directory.ledger))
    known = (*honest, holders.LOW) if has_holder else honest
    nodes = [r for r in records if isinstance(r, NodeEvent) and r.node.partition("-")[0] not in known]
    problems = audit(records, load_config(directory.config).schedule).problems
    for trace in [*foreign, *nodes, *problems]:
        print(trace, file=sys.stderr)
    return len(foreign) + len(nodes) + len(problems)


def _is_of_holder(event: dict[str, Any]) -> bool:
    """True for what the holder of the key for rewards may cause: its own nodes, and refusals."""
    return event["event"] in ("units.failed", "node.rejected") or str(event.get("node")).startswith(holders.LOW)


def _refused(directory: RunDirectory, log: Path) -> dict[str, int]:
    """Refusals by what the broker says of them, in its events and its log."""
    told = [(e["event"], e["num_rejected"]) for e in directory.read_events() if e["event"] == "node.rejected"]
    told += [(e["cause"], e["count"]) for e in directory.read_events() if e["event"] == "units.failed"]
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    told += [(line["event"], line["num_refused"]) for line in lines if "num_refused" in line]
    return dict(told)


def _port(address: str) -> int:
    return int(re.findall(r"\d+$", address)[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--keys", action="store_true", help="attack a broker with keys of its own")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="cases to run")
    parser.add_argument("--seconds", type=float, default=1.5, help="duration of each window")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each victim")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = smoke.parsed(parser)
    options.cases = options.cases or list(strangers.KINDS | holders.KINDS if options.keys else strangers.KINDS)
    if not options.keys and set(options.cases) & set(holders.KINDS):
        parser.error(f"{', '.join(holders.KINDS)} need --keys")
    return options


if __name__ == "__main__":
    sys.exit(asyncio.run(main(_options())))
