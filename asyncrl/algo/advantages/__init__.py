"""
How much better than expected each token was: one estimator a name, a file for each idea.

    group_baselines   against siblings: grpo, dr_grpo, grpo_passk, rloo, opo, gpg
    gdpo              against siblings, each reward by itself
    reinforce         against the whole step: reinforce_plus_plus, reinforce_plus_plus_baseline
    greedy_baseline   against a greedy answer: remax
    gae               against a critic
    token_baseline    against what siblings still had to gain at the same token: optimal_token_baseline

`table` has them by name. Numpy in float64, and no tensor anywhere.
"""
