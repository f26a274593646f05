"""
Advantage estimators: how much better than a baseline each token was.

    group_baselines   baseline from the group: grpo, dr_grpo, grpo_passk, rloo, opo, gpg
    gdpo              baseline from the group, separately for each metric
    reinforce         baseline from the whole step, or from a greedy answer: reinforce_plus_plus,
                      reinforce_plus_plus_baseline, remax
    gae               baseline from a critic
    token_baseline    baseline from the group's returns at the same token: optimal_token_baseline

Every estimator raises an `AsyncrlError` if the outcomes lack what it needs: a field, a metric, a second trajectory in a
group, or at least two tokens to whiten. `table` resolves a name. Arrays are NumPy float64; nothing here imports torch.
"""
