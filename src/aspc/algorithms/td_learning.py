"""Shared pieces of the algorithms: TD targets, twin critics, target updates, and exports of single-network policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, PRNGKeyArray

from aspc.algorithms.interface import Batch, PolicyExport, Spec
from aspc.errors import AspcError
from aspc.networks import ACTIVATIONS, MLP, Critic, DeterministicActor, Ensemble, ensemble, mlp
from aspc.optim import Adam, Minimized

Tree = TypeVar("Tree")


def make_critics(key: PRNGKeyArray, spec: Spec, hidden: Sequence[int], **options: Any) -> Ensemble:
    """Initialize twin critics Q_k(s, a); the options are those of `mlp`."""
    return ensemble(lambda k: Critic(mlp(k, spec.obs_dim + spec.act_dim, hidden, 1, **options)), key)


def bootstrap(batch: Batch, discount: float, next_q: Float[Array, "batch"]) -> Float[Array, "batch"]:
    """Compute y = r + γ·(1 − done)·q'."""
    return batch.rewards + discount * batch.masks * next_q


def fit_critics(
    adam: Adam, critics: Ensemble, opt_state: Any, batch: Batch, y: Float[Array, "batch"], weights: Array | float = 1.0
) -> Minimized:
    """Take one step on Σ_k mean w·(Q_k(s, a) − y)²; `aux` holds Q(s, a) before it, [critics, batch]."""

    def loss(critics: Ensemble) -> tuple[Array, Array]:
        q = critics(batch.observations, batch.actions)
        return (weights * jnp.square(q - y)).mean(1).sum(), q

    return adam.minimize(loss, critics, opt_state)


def polyak(target: Tree, online: Tree, tau: float | Array) -> Tree:
    """Compute target ← (1 − τ)·target + τ·online."""
    moved: Tree = jax.tree.map(lambda t, o: (1 - tau) * t + tau * o, target, online)
    return moved


def expectile_loss(advantage: Float[Array, "batch"], expectile: float) -> Float[Array, ""]:
    """Compute E[|τ − 1(A < 0)|·A²], A = q − V, whose minimizer V is the expectile τ of q."""
    return (jnp.abs(expectile - (advantage < 0)) * jnp.square(advantage)).mean()


def min_q(q: Float[Array, "2 batch"]) -> Float[Array, "batch"]:
    """Compute min_k Q_k of twin critics where a derivative is taken.

    It is a selection: the derivative of `q.min(0)` divides by how many critics equal the minimum, which is 0/0 where a
    compiler computes Q twice and rounds it differently.
    """
    return jnp.where(q[0] < q[1], q[0], q[1])


def mean_abs(q: Float[Array, "batch"]) -> Float[Array, ""]:
    """Compute E|Q| without gradient: the normalizer of Q wherever a scale weighs it."""
    return sg(jnp.abs(q).mean())


def mlp_arrays(net: MLP, prefix: str = "") -> dict[str, Array]:
    """Name the arrays of an MLP (or an ensemble of them) as the policy format does."""
    arrays: dict[str, Array] = {}
    for i, layer in enumerate(net.layers):
        arrays |= {f"{prefix}layers.{i}.weight": layer.weight, f"{prefix}layers.{i}.bias": layer.bias}
    for i, norm in enumerate(net.norms):
        arrays |= {f"{prefix}norms.{i}.weight": norm.scale, f"{prefix}norms.{i}.bias": norm.bias}
    return arrays


def mlp_settings(*nets: MLP) -> dict[str, Any]:
    """Return the settings of exported MLPs: their activation and, with LayerNorm, its epsilon.

    Raises:
        AspcError: An exported policy cannot have this activation, or the networks differ.
    """
    (activation, *other_activations) = dict.fromkeys(net.activation for net in nets)
    (eps, *other_eps) = dict.fromkeys(net.norms[0].eps for net in nets if net.norms) or (None,)
    if other_activations or other_eps:
        raise AspcError("The networks of an exported policy must share their activation and their LayerNorm epsilon.")
    name = next((name for name, known in ACTIVATIONS.items() if known is activation), None)
    if name is None:
        found = getattr(activation, "__name__", repr(activation))
        raise AspcError(
            f"A policy with the activation {found} cannot be exported. Use one of these functions of jax.nn: "
            f"{', '.join(ACTIVATIONS)}."
        )
    return {"activation": name, **({} if eps is None else {"layer_norm_eps": eps})}


def deterministic_policy(actor: DeterministicActor | MLP) -> PolicyExport:
    """Export a policy that acts with tanh(MLP(s)), given as an actor or as its MLP."""
    if isinstance(actor, MLP):
        actor = DeterministicActor(actor)
    settings = {**mlp_settings(actor.net), "output": "tanh"}
    return PolicyExport("deterministic", mlp_arrays(actor.net), settings, lambda s: actor(s) / actor.max_action)
