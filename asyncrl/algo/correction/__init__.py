"""
What is done about the sampler and the trainer not being the same policy.

They differ because the sampler's weights are older, or because its arithmetic is another. With d = log π(t) − log
π_sampler(t) for every token t of a sequence:

    importance   weight w of a token: exp(d), or exp(Σ d) of its sequence; bounded above, or zero outside a band
    rejection    tokens or sequences that are left out: k1 = −d, k2 = d²/2, k3 = eᵈ − 1 − d, of a token, or their sum,
                 mean or maximum over the sequence. The mean of k1 is the logarithm of the geometric mean ratio

Which π that is, and what the ratio ρ of the loss is taken against, is the mode:

    decoupled    three policies. Old is what the step begins with: d = log π_old − log π_sampler is known before the
                 first gradient, and is the same for all mini-batches. For the clipped loss
                     L = −w · min(ρ A, clip(ρ) A),     ρ = π/π_old,     w = π_old/π_sampler
                 Without importance and rejection this is decoupled PPO: old log-probs alone stand in the ratio.
    bypass       two policies, ρ = π/π_sampler. d = log π − log π_sampler changes with every update, so weights and
                 rejections are computed where the loss is. A loss of the ratio carries the weight in it already and is
                 given none; `reinforce`, which knows no ratio, is: L = −w · A log π. What has to see the whole step,
                 normalisation, is not to be had here.

The order of a step: KL into the rewards ─▶ correction ─▶ advantages ─▶ loss.

    A sequence that is rejected is left out of the loss and nowhere else. Its score still counts in the mean and the
    deviation of its group, and it is still one of the sequences an aggregation over sequences divides by.
    An aggregation over tokens divides by those that are kept in decoupled mode, and by all of them in bypass mode.

Weights and rejections carry no gradient: they say how much a token counts, not where to go.

Source:
    Espeholt et al. 2018, arXiv:1802.01561 (truncated weights); Hilton et al. 2021, arXiv:2110.00641 (decoupled).
"""
