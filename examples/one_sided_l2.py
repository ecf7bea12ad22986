"""A custom outer loss in one file outside the package: ASPC whose L2 penalizes only decreases of Q.

L2 keeps its value where the average of Q falls, and is 0 where it rises. L3, which multiplies L2, follows it.
    aspc train maze2d-umaze --plugin examples/one_sided_l2.py --algo aspc_one_sided_l2 --steps 20000
"""

from dataclasses import dataclass

import jax.numpy as jnp

from aspc.authoring import AdaptiveScale, register


@register("aspc_one_sided_l2")
@dataclass(frozen=True)
class OneSidedL2(AdaptiveScale):
    def loss_terms(self):
        terms = super().loss_terms()
        return {**terms, "L2": lambda step: jnp.where(step.new_ema_q < step.ema_q, terms["L2"](step), 0.0)}
