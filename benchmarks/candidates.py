"""Candidates for a better variant, ASPC with changes of its policies; the one that won is the library's `aspc_plus`.

    aspc bench candidates candidates_long --plugin benchmarks/candidates.py --data FOLDER --out RESULTS

Two scales: the critics are learned with the policy that has the learned scale α, close to the data, where their values
can be trusted. A second policy is trained on the same critics with the scale acting_ratio · α, and a slow average of
its weights is rolled out. TD3+BC with two scales says how much of what that gives is ASPC's.

ReBRAC's backbone: ASPC as it is, α on Q and three outer losses, with ReBRAC's deeper actor and penalty of the critics.
(The library's `rebrac+aspc` learns β₁, which weighs the BC term; it rises as α does, and the policy becomes BC's.)

A million steps show what 300,000 do not: α goes as far as its learning rates let it, three times as far in three times
the steps, and where it is large evaluations of one run swing widely. So there are candidates for long runs. One lets α
go as far as in 300,000 steps, with a learning rate that is smaller by the same factor. The next also acts with an
average of the weights that the trained policy has on its way. The others have two scales and judge a step on an
independent batch, which leaves α low where data are narrow.

`candidates_trial` is what the ratio and the rest were chosen by: short runs on one dataset of the half that chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms import register
from aspc.algorithms.base import Batch, Noise
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC, TDTarget
from aspc.algorithms.two_scales import AveragedPolicy, TwoScales
from aspc.experiments.suites import (
    ASPC,
    EVERY_100K,
    MANY_EPISODES,
    MILLION,
    SHORT,
    TD3_BC,
    Block,
    Suite,
    Variant,
    search,
)
from aspc.experiments.suites import register as register_suite


@dataclass(frozen=True)
class CriticPenalty(TD3BC):
    """TD3+BC with ReBRAC's penalty in the critics' target: y = r + γ·(min_k Q'_k(s', a') − β₂·‖a' − ã'‖²)."""

    uses_next_actions: ClassVar[bool] = True

    beta2: float = 0.01
    """Weight of the penalty; ã' is the action logged after s'."""

    def td_target(self, state: TD3State, batch: Batch, noise: Noise) -> TDTarget:
        target = super().td_target(state, batch, noise)
        assert batch.next_actions is not None, "the penalty needs the action logged after each transition"
        penalty = jnp.square(target.next_actions - batch.next_actions).sum(-1)
        return target._replace(y=target.y - self.discount * batch.masks * self.beta2 * penalty)


BASES = {"two_scales": TwoScales, "averaged_policy": AveragedPolicy, "critic_penalty": CriticPenalty}
for name, base in BASES.items():
    register(name)(base)
    register(f"{name}+aspc")(lambda base=base: AdaptiveScale(base=base()))

RATIOS = (2.0, 4.0)
BACKBONE = {"actor_hidden_layers": 3, "beta2": 0.01}
VARIANTS = (
    ASPC,
    *(Variant(f"two scales, ratio {ratio:g}", "two_scales+aspc", {"acting_ratio": ratio}) for ratio in RATIOS),
    Variant("TD3+BC, two scales, ratio 4", "two_scales", {"acting_ratio": 4.0}),
    Variant("ReBRAC's backbone", "critic_penalty+aspc", BACKBONE),
    Variant("ReBRAC's backbone, batch 1,024", "critic_penalty+aspc", {**BACKBONE, "batch_size": 1024}),
)
RATE, OTHER_BATCH = AdaptiveScale.scale_lr, {"outer_batch": "independent"}
SLOWER = 0.3 * RATE  # what makes a million steps of α together as long as 300,000 are by default
CAUTIOUS = tuple(
    Variant(f"independent outer batch, {variant.label}", variant.algo, {**OTHER_BATCH, **variant.settings})
    for variant in VARIANTS
    if variant.algo == "two_scales+aspc"
)
LONG = (
    *(ASPC, TD3_BC),
    Variant("scale lr × 0.3", "aspc", {"scale_lr": SLOWER}),
    Variant("scale lr × 0.3, averaged policy", "averaged_policy+aspc", {"scale_lr": SLOWER}),
    *CAUTIOUS,
)
# Of the half that judges, the locomotion datasets on which the last scores of ASPC's own seeds have a standard
# deviation of more than two points in tier a. Two seeds would leave the interval of the cautious ones to these three.
SPREAD = ("halfcheetah-medium-expert", "walker2d-medium-expert", "walker2d-full-replay")


def trial(algo: str, **settings: Any) -> Variant:
    """A variant that is called what it is."""
    return Variant(", ".join([algo, *(f"{name} {value}" for name, value in settings.items())]), algo, settings)


TRIALS = (
    trial("averaged_policy+aspc"),
    trial("averaged_policy+aspc", discount=0.995),
    trial("averaged_policy+aspc", scale_lr=3 * RATE),
    trial("averaged_policy+aspc", **OTHER_BATCH),
    trial("averaged_policy+aspc", **OTHER_BATCH, scale_lr=3 * RATE),
    trial("averaged_policy+aspc", **OTHER_BATCH, scale_lr=10 * RATE),
    trial("averaged_policy+aspc", **OTHER_BATCH, scale_lr=10 * RATE, discount=0.995),
    trial("two_scales+aspc", acting_ratio=2.0),
    trial("two_scales+aspc", acting_ratio=4.0),
    trial("two_scales+aspc", acting_ratio=8.0),
    trial("two_scales+aspc", acting_ratio=4.0, discount=0.995),
)
search("candidates", "ASPC with changes of its policies", VARIANTS)
in_a_million = "a slower scale, the average of the policy and two scales, a million steps"
four_seeds = Block(CAUTIOUS, SPREAD, MILLION, options=EVERY_100K)
search("candidates_long", in_a_million, LONG, MILLION, four_seeds)
on_one = Block(TRIALS, ("maze2d-medium",), SHORT, options={**MANY_EPISODES, "eval_every": 50_000})
register_suite(Suite("candidates_trial", "trials on one dataset of the half that chooses", "this project", (on_one,)))
