from asyncrl.node.machine.cluster.cluster_file import Cluster, Machine
from asyncrl.node.machine.cluster.findings import Findings
from asyncrl.node.machine.cluster.probe_messages import NoAnswer


def test_findings_are_kept_by_name_of_the_machine() -> None:
    cluster = Cluster(broker="tcp://n:1", machine=[Machine(name="a", roles=["reward"])])
    silent = NoAnswer("no route")
    found = Findings(cluster=cluster, looks={"a": silent}, clock_offsets_s={"a": 0.0}, bind_problem="", transfers={})
    assert found.looks["a"] is silent
