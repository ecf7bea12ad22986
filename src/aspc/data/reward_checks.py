"""Warnings about rewards that are hard for critics to learn from, each with an option that helps."""

from __future__ import annotations

import numpy as np

SMALL_REWARD, LARGE_REWARD = 1e-3, 1e3  # limits for the 99th percentile; critics learn values of order 1 to 1,000
LOSS_FACTOR = 3.0  # maximum ratio of the sums of negative and positive rewards
QUANTILE = 0.99


def check_rewards(rewards: np.ndarray, *, has_terminals: bool, scale: float = 1.0, shift: float = 0.0) -> list[str]:
    """Warn about rewards that are extremely large or small, or all or mostly negative.

    Args:
        rewards: The rewards after any scale and shift.
        has_terminals: True if terminals end episodes.
        scale: The factor already applied to the rewards.
        shift: The shift added after scaling.
    """
    unshifted = rewards.astype(np.float64) - shift
    typical = float(np.quantile(np.abs(unshifted), QUANTILE))
    if typical == 0 or SMALL_REWARD <= typical <= LARGE_REWARD:
        return check_negative_rewards(rewards, has_terminals=has_terminals, shift=shift)
    factor = 10.0 ** -round(np.log10(typical))
    return [
        f"rewards are {'as large as' if typical > 1 else 'not larger than'} {typical:.2g}: at this scale critics learn "
        f"slowly or diverge; train with --reward-scale {scale * factor:g}.",
        *check_negative_rewards(unshifted * factor, has_terminals=has_terminals),
    ]


def check_negative_rewards(rewards: np.ndarray, *, has_terminals: bool, shift: float = 0.0) -> list[str]:
    """Warn about rewards that are all or mostly negative.

    With such rewards, untried actions look better than logged ones at first, because critics start near 0.

    Args:
        rewards: The rewards after any shift.
        has_terminals: True if terminals end episodes; shifting the rewards would then favor long episodes.
        shift: The shift already added to the rewards.
    """
    lowest, highest = float(rewards.min()), float(rewards.max())
    share = float((rewards < 0).mean())
    lost, gained = -rewards.clip(max=0).sum(dtype=np.float64), rewards.clip(min=0).sum(dtype=np.float64)
    if lowest == highest or (highest > 0 and (share <= 0.5 or lost <= LOSS_FACTOR * gained)):
        return []
    problem = (
        "no reward is above 0" if highest <= 0 else f"rewards are mostly below 0 (in {100 * share:.0f} % of the rows)"
    )
    # After a shift, critics must first rise to shift / (1 - discount), which takes many steps.
    remedy = "train with --algo iql"
    if not has_terminals:
        remedy = f"use --algo iql, or, if you can afford many steps, train with --reward-shift {shift - lowest:.3g}"
    return [f"{problem}: untried actions can look better than all logged ones; {remedy}."]
