"""Adapter for FQL traces."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from aspc.algorithms.fql import FQL, FQLState
from aspc.algorithms.interface import Batch, Noise, Parts
from aspc.lab.reference.adapter import Adapter, require
from aspc.lab.reference.replay import Row, Trace
from aspc.lab.reference.trace_networks import (
    Arrays,
    flax_mlp,
)
from aspc.networks import (
    Critic,
    Ensemble,
    Flow,
)


def fql(trace: Trace) -> Adapter[FQLState]:
    """Return the adapter for an FQL trace."""
    meta = trace.meta
    require(meta, gelu="tanh approximation")
    algorithm = FQL(
        alpha=meta["alpha"],
        normalize_q=meta["normalize_q_loss"],
        flow_steps=meta["flow_steps"],
        q_agg=meta["q_agg"],
        discount=meta["discount"],
        tau=meta["tau"],
        lr=meta["lr"],
    )
    load_mlp = partial(flax_mlp, activation=jax.nn.gelu, eps=meta["layernorm_eps"])

    def load_flow(arrays: Arrays) -> Flow:
        return Flow(load_mlp(arrays))

    def load_twin_q(arrays: Arrays) -> Ensemble:
        return Ensemble(Critic(load_mlp(arrays)))

    def probe(state: FQLState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        actions = jnp.clip(state.one_step(batch.observations, noise["metric_action"]), -1, 1)
        new, _ = algorithm.update(state, batch, noise, parts)
        # Recover the gradient from Adam's first moment, m' = 0.9·m + 0.1·g.
        moments = [[opt[0].mu for opt in (s.critics_opt, s.flow_opt, s.one_step_opt)] for s in (state, new)]
        grads = jax.tree.leaves(jax.tree.map(lambda m, m_new: (m_new - 0.9 * m) / 0.1, *moments))
        return {
            "actor_mse": jnp.square(actions - batch.actions).mean(),
            # As in the authors' logs: the sum of the arrays' norms, and extremes over gradients that include the zero
            # gradients of the target networks.
            "grad_norm": jnp.stack([jnp.sqrt(jnp.square(g).sum()) for g in grads]).sum(),
            "grad_max": jnp.stack([g.max() for g in grads]).max(initial=0.0),
            "grad_min": jnp.stack([g.min() for g in grads]).min(initial=0.0),
        }

    def actor_loss(row: Row) -> Any:
        return row["actor_loss"] + row["flow_loss"]

    return Adapter(
        algorithm,
        lambda nets: algorithm.start(nets["actor_bc_flow"], nets["actor_onestep_flow"], nets["critic"]),
        {
            "actor_bc_flow": load_flow,
            "actor_onestep_flow": load_flow,
            "critic": load_twin_q,
            "target_critic": load_twin_q,
        },
        lambda state: {
            "actor_bc_flow": state.flow,
            "actor_onestep_flow": state.one_step,
            "critic": state.critics,
            "target_critic": state.critics_target,
        },
        {
            **{name: name for name in ("grad_norm", "grad_max", "grad_min", "actor_mse")},
            **{f"critic_q_{of}": f"q_{of}" for of in ("mean", "max", "min")},
            "critic_critic_loss": "critic_loss",
            "actor_actor_loss": actor_loss,
            "actor_bc_flow_loss": "flow_loss",
            "actor_distill_loss": "distillation_loss",
            "actor_q_loss": "q_loss",
            "actor_q": "actor_q_mean",
        },
        probe,
    )
