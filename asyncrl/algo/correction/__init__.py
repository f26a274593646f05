"""
Off-policy correction between sampler and trainer.

The two policies differ because the sampler's weights are older or its arithmetic is different. With d = log π(t) − log
π_sampler(t) for every token t of a sequence:

    importance   weight w of a token: exp(d), or exp(Σ d) of its sequence; bounded above, or zero outside a band
    rejection    removes tokens or sequences from the loss by k1 = −d, k2 = d²/2 or k3 = eᵈ − 1 − d of a token, or
                 their sum, mean or maximum over the sequence. The mean of k1 is minus the log of the geometric mean
                 of the ratios exp(d)

The mode sets π and the denominator of the ratio ρ in the loss:

    decoupled    three policies. π_old is the one the step begins with: d = log π_old − log π_sampler is known before
                 the first gradient and is the same for all mini-batches. For the clipped loss
                     L = −w · min(ρ A, clip(ρ) A),     ρ = π/π_old,     w = π_old/π_sampler
                 Without importance and rejection this is decoupled PPO: only the ratio uses the old log-probs.
    bypass       two policies, ρ = π/π_sampler. d = log π − log π_sampler changes with every update, so weights and
                 rejections are computed with the loss. A loss with a ratio contains the weight already and gets none;
                 `reinforce`, without a ratio, becomes L = −w · A log π. Normalized weights need the whole step and are
                 not available.

The order of a step: KL into the rewards ─▶ correction ─▶ advantages ─▶ loss.

    A rejected sequence is removed from the loss only. Its reward still counts in the mean and the deviation of its
    group, and it counts as a sequence in an aggregation over sequences.
    An aggregation over tokens divides by the kept tokens in decoupled mode, and by all tokens in bypass mode.

Weights and rejections carry no gradient.

Source:
    Espeholt et al. 2018, arXiv:1802.01561 (truncated weights); Hilton et al. 2021, arXiv:2110.00641 (decoupled).
"""
