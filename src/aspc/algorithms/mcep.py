"""MCEP on TD3+BC (Xu et al., TMLR 2024, arXiv 2306.03680): a mildly constrained evaluation policy.

    π̃:  max  λ̃·Q(s, π̃(s)) − (π̃(s) − a)²,      λ̃ = α̃ / mean|Q|       the target policy: critics bootstrap from it   (4)
    πᵉ: max  λᵉ·Q(s, πᵉ(s)) − (πᵉ(s) − a)²,    λᵉ = αᵉ / mean|Q|       the evaluation policy: it acts                (5)

The constraint that keeps value estimation stable can be too strict for acting. So the critics are learned with a
strictly constrained policy, and a second one with a milder constraint is extracted from them; it never enters the
critics' targets.

From the paper and the authors' code (github.com/egg-west/MCEP): α̃ = 2.5 and αᵉ = 10 on locomotion; both policies take
a step on every second update of the critics, on the same batch and the first critic; learning rates 3e-4; the policy
that acts is πᵉ itself, without averaging. Their Adroit runs use α̃ = 10, αᵉ = 100 and a normalized BC term.

Choices made here: λ is normalized by Q(s, π(s)), as in their code (the paper's (4) has the logged actions); both
policies start as one network, where the authors draw two, so that equal scales give TD3+BC; the critics are the robust
ones of every other TD3+BC here, and rewards are unchanged. The authors' critics and locomotion rewards are
`critic_hidden_layers=2, critic_layer_norm=False, reward_transform="return_range"`. Their normalized BC term is not
implemented, and neither is MCEP on AWAC or Diffusion-QL.
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
    """Scale αᵉ of the policy that acts; `alpha` is that of the policy the critics bootstrap from."""

    def second_scale(self, scale: Array | float) -> Array | float:
        return self.evaluation_alpha
