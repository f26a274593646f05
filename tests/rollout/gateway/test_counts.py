from asyncrl.rollout.gateway.counts import Counts


def test_metrics_tell_roots_that_a_program_did_not_intend() -> None:
    counts = Counts({"forks": 1, "roots": 3, "root_new_root": 1, "root_edited_reply": 1, "root_tools_changed": 1})
    assert counts.scores == {"forks": 1.0, "roots": 3.0, "broken_lineage": 2.0}


def test_an_episode_of_one_branch_has_zeros() -> None:
    assert Counts().scores == {"forks": 0.0, "roots": 0.0, "broken_lineage": 0.0}
