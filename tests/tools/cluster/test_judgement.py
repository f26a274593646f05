import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.runtime.machine import CheckLine
from asyncrl.tools.cluster.judgement import (
    ClusterFindings,
    ClusterMachines,
    Machine,
    MachineRole,
    connecting_pairs,
    decode,
    judge,
    load,
    rounds,
)
from asyncrl.tools.cluster.probe import Facts, File, KeyState, NoAnswer, Sent, Unable

TEXT = """
broker = "tcp://[fd00::1]:5570"
model = "/models/m"
[[machine]]
name = "node-1"
roles = ["broker", "trainer"]
[[machine]]
name = "node-2"
roles = ["reward"]
run = "ssh -o 'User=a b' node-2"
program = "/opt/venv/bin/asyncrl"
"""


def test_a_file_says_how_asyncrl_is_started_on_each_machine(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(TEXT)
    cluster = load(tmp_path / "cluster.toml")
    here, there = cluster.machine
    assert here.command == [sys.executable, "-m", "asyncrl"]
    assert there.command == ["ssh", "-o", "User=a b", "node-2", "/opt/venv/bin/asyncrl"]
    assert cluster.broker == "tcp://[fd00::1]:5570"
    assert [cluster.model_of(machine) for machine in cluster.machine] == ["/models/m", ""]


def changed(**values: Any) -> dict[str, Any]:
    return {"broker": "tcp://n:1", "machine": [{"name": "a", "roles": ["trainer"]}]} | values


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"broker": "n:1"}, "broker is 'n:1': expected tcp://HOST:PORT"),
        ({"broker": "ipc:///a"}, "broker is 'ipc:///a': expected tcp://HOST:PORT"),
        ({"broker": "tcp://n:0"}, "expected a port from 1 to 65535, got 0"),
        ({"machines": []}, "unknown key 'machines': did you mean 'machine'?"),
        ({"machine": []}, "machine: expected a list of length >= 1"),
        ({"machine": [{"name": "a", "roles": ["cook"]}]}, "machine"),
        ({"machine": [{"name": "a", "roles": ["reward"]}] * 2}, "2 machines have the name 'a'"),
        (
            {"machine": [{"name": name, "roles": ["broker"]} for name in "ab"]},
            "a and b have the role broker: expected one machine at most",
        ),
        (
            {"machine": [{"name": "a", "roles": ["reward"], "run": "ssh '"}]},
            "machine 'a': run or program cannot be split into words: No closing quotation",
        ),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(changed(**values))
    assert sentence in str(raised.value)


# ── test findings ─────────────────────────────────────────────────────────────────────────────


def test_findings_are_kept_by_name_of_the_machine() -> None:
    cluster = ClusterMachines(broker="tcp://n:1", machine=[Machine(name="a", roles=["reward"])])
    silent = NoAnswer("no route")
    found = ClusterFindings(
        cluster=cluster, looks={"a": silent}, clock_offsets_s={"a": 0.0}, bind_problem="", transfers={}
    )
    assert found.looks["a"] is silent


# ── test judgement ────────────────────────────────────────────────────────────────────────────

CLUSTER = ClusterMachines(
    broker="tcp://10.0.0.1:5570",
    model="/m",
    machine=[
        Machine(name="n1", roles=["broker", "trainer"], model="/m"),
        Machine(name="n2", roles=["rollout"], key="/k", run="ssh n2"),
    ],
)
FIT = Facts(
    protocol=4,
    versions={"python": "3.12.1", "asyncrl": "1.0", "torch": "2.13.0"},
    missing=[],
    clock_s=0.0,
    address="10.0.0.2",
    interface="eth0",
    broker_problem="",
    devices="cuda 0,1",
    open_files=20000,
    locked_bytes=-1,
    free_bytes=50 << 30,
    key=KeyState(name="n2", roles=["rollout", "reward"]),
    model_config=File(digest="a" * 64),
)
FIRST = msgspec.structs.replace(FIT, address="10.0.0.1", key=None)
SENT = Sent(num_bytes=1 << 31, seconds=2.0, round_trip_s=0.0001)
PAIRS = {("n1", "n2"): SENT, ("n2", "n1"): SENT}


def findings(**changes: Any) -> ClusterFindings:
    """Findings about a fit cluster, with other facts of its second machine."""
    return ClusterFindings(
        cluster=CLUSTER,
        looks={"n1": FIRST, "n2": msgspec.structs.replace(FIT, **changes)},
        clock_offsets_s={"n1": 0.1, "n2": 0.1},
        bind_problem="",
        transfers=dict(PAIRS),
    )


def test_a_key_for_another_broker_than_the_others_is_named() -> None:
    keys = {name: KeyState(name=name, roles=["rollout"], broker=of) for name, of in (("n1", "a1"), ("n2", "b2"))}
    found = findings(key=keys["n2"])
    looks = found.looks | {"n1": msgspec.structs.replace(FIRST, key=keys["n1"])}
    told = line(msgspec.structs.replace(found, looks=looks), "n2", "key")
    assert (told.state, told.what) == ("bad", "n2, for another broker")
    assert (
        "n2 of n2 is for the broker with the key b2, and that of another machine for a1: copy the key" in told.problem
    )


def line(found: ClusterFindings, section: str, name: str) -> CheckLine:
    return next(line for line in judge(found).lines if (line.section, line.name) == (section, name))


def test_a_fit_cluster_has_no_problem() -> None:
    found = judge(findings())
    assert found.is_fit
    assert found.problems == []
    assert {line.state for line in found.lines} == {"good"}
    assert {line.section for line in found.lines} == {"n1", "n2", "transfers"}
    assert line(findings(), "transfers", "n1 to n2").what == "8.6 Gbit/s, 0.10 ms"


@pytest.mark.parametrize(
    ("changes", "name", "problem"),
    [
        (
            {"broker_problem": "timed out"},
            "broker",
            "n2 cannot connect to tcp://10.0.0.1:5570 (timed out): check the address and the firewalls",
        ),
        ({"address": "", "interface": ""}, "interface", "n2 has no route to tcp://10.0.0.1:5570"),
        ({"interface": ""}, "interface", "no network interface of n2 has the address 10.0.0.2"),
        ({"interface": "lo"}, "interface", "n2 reaches the broker over its loopback interface"),
        (
            {"protocol": 3, "versions": {"asyncrl": "0.9"}},
            "protocol",
            "n2 has protocol 3 (asyncrl 0.9), and n1 protocol 4 (asyncrl 1.0): install the same version",
        ),
        ({"missing": ["torch"]}, "packages", "n2 lacks torch for rollout: pip install 'asyncrl[train]'"),
        (
            {"key": KeyState(problem="the key file /k is open: chmod it")},
            "key",
            "key of n2: the key file /k is open: chmod",
        ),
        (
            {"key": KeyState(name="k2", roles=["reward"])},
            "key",
            "the key k2 of n2 is for reward, not for rollout: allow a key for all of its roles",
        ),
        ({"model_config": File(problem="Not found")}, "model", "n2 cannot read /m/config.json (Not found)"),
        (
            {"model_config": File(digest="b" * 64)},
            "model",
            "n2 has another model than n1: SHA-256 of /m/config.json is bbbbbbbbbbbb, there aaaaaaaaaaaa",
        ),
        ({"free_bytes": 1 << 20}, "disk", "n2 has only 1 MiB free in .: make room"),
    ],
)
def test_what_would_stop_a_run_is_one_sentence_with_its_machine(
    changes: dict[str, Any], name: str, problem: str
) -> None:
    found = findings(**changes)
    assert not judge(found).is_fit
    assert line(found, "n2", name).state == "bad"
    (sentence,) = judge(found).problems
    assert sentence.startswith(problem)


def test_libraries_may_differ_and_are_reported() -> None:
    found = findings(versions={"python": "3.11.7", "asyncrl": "1.0", "torch": "2.12.0"})
    assert judge(found).is_fit
    versions = line(found, "n2", "versions")
    assert versions.state == "absent"
    assert versions.what.endswith("differs: python 3.11.7 (3.12.1 on n1), torch 2.12.0 (2.13.0 on n1)")


def test_a_machine_without_the_model_fetches_it_from_the_brokers() -> None:
    missing = {"model_config": File(problem="Not found"), "lacks_model": True}
    found = findings(**missing)
    assert judge(found).is_fit
    assert line(found, "n2", "model").what == "/m: none, will be fetched from n1"

    nobody_has_it = msgspec.structs.replace(
        found, looks={name: msgspec.structs.replace(facts, **missing) for name, facts in found.looks.items()}
    )
    assert [problem.split(":")[0] for problem in judge(nobody_has_it).problems] == [
        "n1 cannot read /m/config.json (Not found)",
        "n2 cannot read /m/config.json (Not found)",
    ]


def test_a_broker_needs_no_model_of_its_own() -> None:
    machines = [Machine(name="n1", roles=["broker", "reward"]), CLUSTER.machine[1]]
    first = msgspec.structs.replace(FIRST, model_config=File(problem="Not found"), lacks_model=True)
    found = msgspec.structs.replace(
        findings(), cluster=msgspec.structs.replace(CLUSTER, machine=machines), looks={"n1": first, "n2": FIT}
    )
    assert judge(found).is_fit
    assert line(found, "n1", "model").what == "/m: none, which others could fetch"


def test_a_clock_is_reported_and_stops_nothing() -> None:
    found = msgspec.structs.replace(findings(), clock_offsets_s={"n1": 0.0, "n2": -61.2})
    assert judge(found).is_fit
    assert line(found, "n2", "clock").what == "61 s behind this one; times in logs differ by that"


def test_only_machines_that_compute_need_torch() -> None:
    machines = [CLUSTER.machine[0], Machine(name="n2", roles=["reward"])]
    cluster = msgspec.structs.replace(CLUSTER, machine=machines)
    assert judge(msgspec.structs.replace(findings(missing=["torch"]), cluster=cluster)).is_fit
    assert not judge(msgspec.structs.replace(findings(missing=["pyzmq"]), cluster=cluster)).is_fit


def test_a_machine_that_does_not_answer_is_named_with_its_commands_error() -> None:
    looks = {"n1": FIRST, "n2": NoAnswer("`ssh n2` gave no answer within 60 s")}
    found = judge(msgspec.structs.replace(findings(), looks=looks, transfers={}))
    assert not found.is_fit
    assert found.problems == [
        "n2 does not answer: `ssh n2` gave no answer within 60 s; run this command by hand, and see run and program in "
        "the cluster file"
    ]


def test_without_the_brokers_machine_others_are_compared_with_the_first() -> None:
    looks = {"n1": NoAnswer("down"), "n2": FIT}
    found = judge(msgspec.structs.replace(findings(), looks=looks, transfers={}))
    assert len(found.problems) == 1


def test_an_address_that_the_brokers_machine_does_not_have_is_a_problem() -> None:
    found = msgspec.structs.replace(findings(), bind_problem="Cannot assign requested address")
    assert judge(found).problems == [
        "n1 cannot listen on tcp://10.0.0.1:5570 (Cannot assign requested address): give the broker an address of this "
        "machine"
    ]


def test_too_few_open_files_stop_a_broker_and_not_a_rollout() -> None:
    assert judge(findings(open_files=1024)).is_fit
    looks = {"n1": msgspec.structs.replace(FIRST, open_files=1024), "n2": FIT}
    (problem,) = judge(msgspec.structs.replace(findings(), looks=looks)).problems
    assert problem.startswith("n1 allows 1,024 open files, too few for a broker: raise the hard limit")


def test_a_pair_that_cannot_connect_is_named_with_the_address() -> None:
    found = msgspec.structs.replace(findings(), transfers=PAIRS | {("n1", "n2"): Unable(reason="timed out")})
    (problem,) = judge(found).problems
    assert problem.startswith("n1 cannot send to n2 at 10.0.0.2 (timed out): open the ports of")
    assert line(found, "transfers", "n2 to n1").state == "good"


# ── test pairs ────────────────────────────────────────────────────────────────────────────────


def machines(*roles: list[MachineRole]) -> list[Machine]:
    return [Machine(name=name, roles=each) for name, each in zip("abcdef", roles, strict=False)]


@pytest.mark.parametrize(
    ("roles", "pairs"),
    [
        ([["trainer"], ["rollout"]], ["ab", "ba"]),
        ([["trainer"], ["trainer"]], ["ab", "ba"]),
        ([["rollout"], ["rollout"]], []),
        ([["broker"], ["trainer"], ["reward"]], []),
        ([["broker", "spool"], ["reward"]], ["ba"]),
        ([["trainer", "spool"], ["rollout"]], ["ab", "ba"]),
    ],
)
def test_members_of_a_collective_connect_both_ways_and_users_of_a_spool_to_it(
    roles: list[list[MachineRole]], pairs: list[str]
) -> None:
    assert ["".join(pair) for pair in connecting_pairs(machines(*roles))] == pairs


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda p: p[0] != p[1]), unique=True
    )
)
def test_each_pair_has_a_round_in_which_no_machine_is_busy_twice(pairs: list[tuple[str, str]]) -> None:
    found = list(rounds(pairs))
    assert sorted(pair for each in found for pair in each) == sorted(pairs)
    assert all(Counter(name for pair in each for name in pair).most_common(1)[0][1] == 1 for each in found)
