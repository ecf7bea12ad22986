"""Shared pieces of the algorithms: TD targets, twin critics, target updates, and exports of single-network policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.component_names import NetworkChoice
from aspc.algorithms.components import make_network
from aspc.algorithms.interface import Batch, PolicyExport, Spec
from aspc.algorithms.policy_tracing import traced_policy
from aspc.custom_networks import CustomNetwork
from aspc.errors import AspcError
from aspc.networks import ACTIVATIONS, MLP, Critic, DeterministicActor, Ensemble, ensemble
from aspc.optim import Minimized, Optimizer

Tree = TypeVar("Tree")


def make_critics(
    key: PRNGKeyArray, spec: Spec, hidden: Sequence[int], network: NetworkChoice = None, **options: Any
) -> Ensemble:
    """Initialize twin critics Q_k(s, a): MLPs with the options of `mlp`, or another network."""
    inputs = spec.obs_dim + spec.act_dim
    return ensemble(lambda k: Critic(make_network(network, k, inputs, hidden, 1, **options)), key)


def bootstrap(batch: Batch, discount: float, next_q: Float[Array, "batch"]) -> Float[Array, "batch"]:
    """Compute y = r + γ·(1 − done)·q'."""
    return batch.rewards + discount * batch.masks * next_q


def fit_critics(
    optimizer: Optimizer,
    critics: Ensemble,
    opt_state: Any,
    batch: Batch,
    y: Float[Array, "batch"],
    weights: Array | float = 1.0,
) -> Minimized:
    """Take one step on Σ_k mean w·(Q_k(s, a) − y)². `aux` holds Q(s, a) [critics, batch] before the step."""

    def loss(critics: Ensemble) -> tuple[Array, Array]:
        q = critics(batch.observations, batch.actions)
        return (weights * jnp.square(q - y)).mean(1).sum(), q

    return optimizer.minimize(loss, critics, opt_state)


def polyak(target: Tree, online: Tree, tau: float | Array) -> Tree:
    """Compute target ← (1 − τ)·target + τ·online."""
    moved: Tree = jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, target, online)
    return moved


def expectile_loss(advantage: Float[Array, "batch"], expectile: float) -> Float[Array, ""]:
    """Compute E[|τ − 1(A < 0)|·A²] with A = q − V, which is minimal if V is the τ-expectile of q."""
    return (jnp.abs(expectile - (advantage < 0)) * jnp.square(advantage)).mean()


def min_q(q: Float[Array, "2 *batch"]) -> Float[Array, "*batch"]:
    """Compute min_k Q_k of twin critics, with a safe derivative.

    The derivative of `q.min(0)` divides by the number of critics that equal the minimum. This is 0/0 if the compiler
    computes Q twice with different rounding. Selecting a critic avoids the division.
    """
    return jnp.where(q[0] < q[1], q[0], q[1])


def mean_abs(q: Float[Array, "batch"]) -> Float[Array, ""]:
    """Compute E|Q| without gradient; losses with a scale divide Q by it."""
    return sg(jnp.abs(q).mean())


def mlp_arrays(net: MLP, prefix: str = "") -> dict[str, Array]:
    """Return the arrays of an MLP (or of an ensemble of MLPs) under their names in the policy format."""
    arrays: dict[str, Array] = {}
    for i, layer in enumerate(net.layers):
        arrays |= {f"{prefix}layers.{i}.weight": layer.weight, f"{prefix}layers.{i}.bias": layer.bias}
    for i, norm in enumerate(net.norms):
        arrays |= {f"{prefix}norms.{i}.weight": norm.scale, f"{prefix}norms.{i}.bias": norm.bias}
    return arrays


def mlp_settings(*nets: MLP | CustomNetwork) -> dict[str, Any] | None:
    """Return the settings of exported MLPs: their activation and, with LayerNorm, its epsilon.

    Return None if a network is not an MLP or has an unnamed activation, or if the networks' settings differ. A policy
    with such networks is exported as a program.
    """
    mlps = [net for net in nets if isinstance(net, MLP)]
    if len(mlps) < len(nets):
        return None
    (activation, *other_activations) = dict.fromkeys(net.activation for net in mlps)
    (eps, *other_eps) = dict.fromkeys(net.norms[0].eps for net in mlps if net.norms) or (None,)
    name = next((name for name, known in ACTIVATIONS.items() if known is activation), None)
    if name is None or other_activations or other_eps:
        return None
    return {"activation": name, **({} if eps is None else {"layer_norm_eps": eps})}


def deterministic_policy(actor: Callable[..., Array], observation_size: int | None = None) -> PolicyExport:
    """Export a deterministic policy.

    Args:
        actor: An actor, its MLP, or another module that maps normalized observations to actions in [-1, 1].
        observation_size: The dimension of an observation; needed for a module that is not a `DeterministicActor`.
    """
    if isinstance(actor, MLP | CustomNetwork):
        actor = DeterministicActor(actor)
    if isinstance(actor, DeterministicActor):
        net, observation_size = actor.net, actor.net.in_size
        settings = mlp_settings(net)
        if isinstance(net, MLP) and settings is not None:
            arrays, settings = mlp_arrays(net), {**settings, "output": "tanh"}
            return PolicyExport("deterministic", arrays, settings, lambda s: actor(s) / actor.max_action)
    if observation_size is None:
        raise AspcError("deterministic_policy needs observation_size to export this actor. Pass it, or pass its net.")
    return traced_policy(lambda actor, s: actor(s) / getattr(actor, "max_action", 1.0), actor, observation_size)
