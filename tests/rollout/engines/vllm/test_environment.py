import os

from asyncrl.rollout.engines.vllm.environment import environment


def test_variables_are_defaults_in_force_for_the_block_alone(monkeypatch):
    monkeypatch.setenv("SET_BY_THE_USER", "theirs")
    monkeypatch.delenv("UNSET", raising=False)

    with environment({"SET_BY_THE_USER": "ours", "UNSET": "ours"}):
        assert (os.environ["SET_BY_THE_USER"], os.environ["UNSET"]) == ("theirs", "ours")
        assert os.environ["ASYNCRL_NODE_PID"] == str(os.getpid())

    assert os.environ["SET_BY_THE_USER"] == "theirs"
    assert "UNSET" not in os.environ
    assert "ASYNCRL_NODE_PID" not in os.environ
