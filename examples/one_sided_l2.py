"""A custom outer loss in one file outside the package: a variant of ASPC whose L2 penalizes only decreases of Q.

L2 is 0 if the average of Q rises. Since L2 is a factor of L3, L3 is then also 0.

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
