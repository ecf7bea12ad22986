"""MCEP on TD3+BC (Xu et al., TMLR 2024, arXiv 2306.03680): a mildly constrained evaluation policy.

    π̃:  max  λ̃·Q(s, π̃(s)) − (π̃(s) − a)²,      λ̃ = α̃ / mean|Q|       the target policy, for the critics' targets    (4)
    πᵉ: max  λᵉ·Q(s, πᵉ(s)) − (πᵉ(s) − a)²,    λᵉ = αᵉ / mean|Q|       the evaluation policy, which acts             (5)

A constraint strict enough for stable value estimation can be too strict for acting. Therefore the critics are trained
with a strictly constrained policy. A second policy with a milder constraint is extracted from these critics, and the
critics' targets never use its actions.

From the paper and the authors' code (github.com/egg-west/MCEP): α̃ = 2.5 and αᵉ = 10 on locomotion. Both policies take
a step on every second critic update, with the same batch and the first critic. Learning rates are 3e-4. πᵉ itself
acts, without weight averaging. The authors' Adroit runs use α̃ = 10, αᵉ = 100 and a normalized BC term.

Choices made here: λ is normalized by Q(s, π(s)), as in the authors' code; the paper's (4) uses the logged actions. Both
policies have the same initial weights, so that equal scales give TD3+BC; the authors initialize them independently. The
critics are the robust critics that all TD3+BC variants of this library use, and rewards are unchanged. For the authors'
critics and locomotion rewards, set `critic_hidden_layers=2, critic_layer_norm=False, reward_transform="return_range"`.
The authors' normalized BC term and MCEP on AWAC and on Diffusion-QL are not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array

from aspc.algorithms.fields import NonNegative
from aspc.algorithms.two_scales import TwoPolicies, TwoPoliciesState


@dataclass(frozen=True)
class MCEP(TwoPolicies[TwoPoliciesState]):
    """TD3+BC whose critics bootstrap from a constrained policy, while a less constrained one acts."""

    evaluation_alpha: NonNegative = 10.0
    """Scale αᵉ of the policy that acts; `alpha` is the scale of the policy in the critics' targets."""

    def second_scale(self, scale: Array | float) -> Array | float:
        return self.evaluation_alpha
