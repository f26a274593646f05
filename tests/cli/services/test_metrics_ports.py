"""No two services of a machine have one port."""

from asyncrl.cli.services.metrics_ports import metrics_by_role, told
from asyncrl.node.process.metrics_server import MetricsOptions


def test_each_role_has_the_port_after_that_of_the_role_before():
    given = metrics_by_role(MetricsOptions("127.0.0.1", 9400), ("broker", "reward", "rollout"))
    assert given == {
        "broker": {"ASYNCRL_METRICS": "127.0.0.1:9400"},
        "reward": {"ASYNCRL_METRICS": "127.0.0.1:9401"},
        "rollout": {"ASYNCRL_METRICS": "127.0.0.1:9402"},
    }


def test_without_metrics_there_are_no_variables():
    assert metrics_by_role(None, ("broker",)) == {}


def test_replicas_have_the_ports_after_the_last_role():
    options = MetricsOptions("10.0.0.1", 9400)
    assert (
        told(options, ("reward", "rollout")) == "reward 10.0.0.1:9400, rollout 10.0.0.1:9401, its replicas from 9402 on"
    )
    assert told(options, ("broker", "reward")) == "broker 10.0.0.1:9400, reward 10.0.0.1:9401"


def test_free_ports_are_not_counted():
    assert told(MetricsOptions("::1", 0), ("rollout",)) == "rollout [::1]:0"
