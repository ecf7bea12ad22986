"""What TD3+BC and ReBRAC share: a deterministic actor, twin critics, their targets, and the smoothed target policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from aspc.algorithms.interface import Batch, Draw, Noise, PolicyExport, ScalableAlgorithm, Spec
from aspc.algorithms.td_learning import deterministic_policy
from aspc.networks import DeterministicActor, Ensemble
from aspc.optim import Adam


class TD3State(NamedTuple):
    actor: DeterministicActor
    actor_target: DeterministicActor
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


@dataclass(frozen=True)
class TD3(ScalableAlgorithm):
    """TD3 (Fujimoto et al., 2018) without the loss of its actor, which is where its offline forms differ."""

    climbs_q: ClassVar[bool] = True

    policy_noise: float = 0.2
    """Standard deviation of the target policy's noise, in units of the largest action."""
    noise_clip: float = 0.5
    """Bound of that noise, in the same units."""
    policy_freq: int = 2
    """Critic updates for each actor update (k_π)."""
    actor_lr: float = 3e-4
    """Learning rate of the actor (Adam)."""
    critic_lr: float = 3e-4
    """Learning rate of the critics (Adam)."""

    def start(self, actor: DeterministicActor, critics: Ensemble) -> TD3State:
        """The state before the first step for given networks: targets are copies, optimisers are empty."""
        actor_opt, critics_opt = Adam(self.actor_lr).init(actor), Adam(self.critic_lr).init(critics)
        return TD3State(actor, actor, actor_opt, critics, critics, critics_opt)

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        return {"target_policy": Draw("normal", (batch_size, spec.act_dim))}

    def next_actions(self, state: Any, batch: Batch, noise: Noise) -> Float[Array, "batch act"]:
        """a' = clip(π'(s') + clip(ε, ±c), ±max_action)."""
        high = state.actor.max_action
        bound = self.noise_clip * high
        epsilon = jnp.clip(self.policy_noise * high * noise["target_policy"], -bound, bound)
        return jnp.clip(state.actor_target(batch.next_observations) + epsilon, -high, high)

    def policy(self, state: Any) -> PolicyExport:
        return deterministic_policy(state.actor.net)
