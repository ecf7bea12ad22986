"""The common part of TD3+BC and ReBRAC: deterministic actor, twin critics, target networks and policy smoothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from aspc.algorithms.component_names import CustomActorCritic
from aspc.algorithms.components import make_optimizer
from aspc.algorithms.fields import Count, NonNegative
from aspc.algorithms.interface import Batch, Draw, Noise, PolicyExport, ScalableAlgorithm, Spec
from aspc.algorithms.td_learning import deterministic_policy
from aspc.networks import Ensemble
from aspc.optim import Optimizer


class TD3State(eqx.Module):
    """Actor and critics with their targets and optimizer states."""

    actor: Any  # a DeterministicActor, or a ProductPolicy for discrete actions
    actor_target: Any
    actor_opt: Any
    critics: Ensemble
    critics_target: Ensemble
    critics_opt: Any


TD3StateT = TypeVar("TD3StateT", bound=TD3State)


@dataclass(frozen=True)
class TD3(CustomActorCritic, ScalableAlgorithm[TD3StateT, Any]):
    """TD3 (Fujimoto et al., 2018) without the actor loss, which its offline variants define."""

    climbs_q: ClassVar[bool] = True

    policy_noise: NonNegative = 0.2
    """Standard deviation of the target policy smoothing noise, relative to max_action."""
    noise_clip: NonNegative = 0.5
    """Clipping range of the target policy smoothing noise, relative to max_action."""
    policy_freq: Count = 2
    """Critic updates per actor update (k_π)."""
    actor_lr: NonNegative = 3e-4
    """Learning rate of the actor (Adam)."""
    critic_lr: NonNegative = 3e-4
    """Learning rate of the critics (Adam)."""

    def td3_state(self, actor: Any, critics: Ensemble) -> TD3State:
        """Return the initial state: targets are copies of the networks, and optimizers are newly initialized."""
        actor_opt, critics_opt = self.inner_optimizer().init(actor), self.critics_optimizer().init(critics)
        return TD3State(actor, actor, actor_opt, critics, critics, critics_opt)

    def inner_optimizer(self) -> Optimizer:
        """Return the actor's optimizer."""
        return make_optimizer(self.actor_optimizer, self.actor_lr)

    def critics_optimizer(self) -> Optimizer:
        """Return the critics' optimizer."""
        return make_optimizer(self.critic_optimizer, self.critic_lr)

    def start(self, *networks: Any) -> TD3StateT:
        """Return the initial state for the given networks (actor, critics, and any networks of a subclass)."""
        return cast("TD3StateT", self.td3_state(*networks))

    def noise(self, spec: Spec, batch_size: int) -> dict[str, Draw]:
        return {"target_policy": Draw("normal", (batch_size, spec.act_dim))}

    def next_actions(self, state: TD3StateT, batch: Batch, noise: Noise) -> Float[Array, "batch act"]:
        """Compute a' = clip(π'(s') + clip(ε, ±c), ±max_action)."""
        high = state.actor.max_action
        bound = self.noise_clip * high
        epsilon = jnp.clip(self.policy_noise * high * noise["target_policy"], -bound, bound)
        actions: Array = jnp.clip(state.actor_target(batch.next_observations) + epsilon, -high, high)
        return actions

    def policy(self, state: TD3StateT) -> PolicyExport:
        return deterministic_policy(state.actor)
