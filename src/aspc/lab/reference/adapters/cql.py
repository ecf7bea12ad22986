"""Adapter for CQL traces."""

from __future__ import annotations

import jax.numpy as jnp

from aspc.algorithms.cql import CQL, CQLState
from aspc.algorithms.interface import Batch, Noise, Parts
from aspc.lab.reference.adapter import Adapter, get_twin_critics, load_critic, require
from aspc.lab.reference.replay import Row, Trace
from aspc.lab.reference.trace_networks import (
    Arrays,
    float64,
    strip_prefix,
    torch_mlp,
)
from aspc.networks import (
    Critic,
    SquashedGaussianActor,
)


def cql(trace: Trace) -> Adapter[CQLState]:
    """Return the adapter for a CQL trace."""
    meta = trace.meta
    require(
        meta,
        use_automatic_entropy_tuning=True,
        target_entropy=-float(meta["act_dim"]),
        log_alpha_init=0.0,
        log_alpha_prime_init=1.0,
        lr_log_alpha=meta["policy_lr"],
        lr_log_alpha_prime=meta["qf_lr"],
        target_update_period=1,
        bc_steps=0,
        log_std_min=-20.0,
        log_std_max=2.0,
    )
    algorithm = CQL(
        cql_alpha=meta["cql_alpha"],
        penalty="importance" if meta["cql_importance_sample"] else "logsumexp",
        n_actions=meta["cql_n_actions"],
        temperature=meta["cql_temp"],
        penalty_min=float(meta["cql_clip_diff_min"]),
        penalty_max=float(meta["cql_clip_diff_max"]),
        lagrange=meta["cql_lagrange"],
        target_gap=meta["cql_target_action_gap"],
        max_target_backup=meta["cql_max_target_backup"],
        backup_entropy=meta["backup_entropy"],
        alpha_multiplier=meta["alpha_multiplier"],
        discount=meta["discount"],
        tau=meta["soft_target_update_rate"],
        actor_lr=meta["policy_lr"],
        critic_lr=meta["qf_lr"],
    )

    def load_actor(arrays: Arrays) -> SquashedGaussianActor:
        net = torch_mlp(strip_prefix(arrays, "base_network."))
        multiplier, offset = (float64(arrays[f"log_std_{name}.constant"]) for name in ("multiplier", "offset"))
        return SquashedGaussianActor(net, multiplier, offset, meta["max_action"])

    def probe(state: CQLState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        """Report each critic separately, as the reference does."""
        ctx = algorithm.prepare(state, batch, noise, parts)
        penalty, n = algorithm.penalize(ctx, state.critics), algorithm.n_actions
        q, gap = penalty.q, penalty.gap.mean(1)
        offset = algorithm.target_gap if algorithm.lagrange else 0.0
        logged = {
            "qf{}_loss": jnp.square(q[..., -1] - ctx.extra.y).mean(1),
            "average_qf{}": q[..., -1].mean(1),
            "cql_std_q{}": jnp.std(q, axis=-1, ddof=1).mean(1),
            "cql_q{}_rand": q[..., :n].mean((1, 2)),
            "cql_q{}_next_actions": q[..., n : 2 * n].mean((1, 2)),
            "cql_q{}_current_actions": q[..., 2 * n : 3 * n].mean((1, 2)),
            "cql_qf{}_diff": gap,
            "cql_min_qf{}_loss": algorithm.penalty_weight(ctx, algorithm.scale) * (gap - offset),
        }
        new, _ = algorithm.update(state, batch, noise, parts)
        return {
            **{name.format(k + 1): values[k] for name, values in logged.items() for k in range(2)},
            "log_alpha_after": new.log_alpha,
            "log_alpha_prime_after": new.log_alpha_prime,
        }

    def load_one(arrays: Arrays) -> Critic:
        return load_critic(strip_prefix(arrays, "network."))

    per_critic = (
        "qf{}_loss",
        "average_qf{}",
        "cql_std_q{}",
        "cql_q{}_rand",
        "cql_q{}_next_actions",
        "cql_q{}_current_actions",
        "cql_qf{}_diff",
        "cql_min_qf{}_loss",
    )
    same = ("log_pi", "alpha_loss", "alpha", "log_alpha_after", "log_alpha_prime_after")
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], get_twin_critics(networks)),
        {
            "actor": load_actor,
            **{f"{which}critic_{k}": load_one for which in ("", "target_") for k in (1, 2)},
        },
        lambda state: {
            "actor": state.actor,
            **{f"critic_{k + 1}": state.critics.cut(k) for k in range(2)},
            **{f"target_critic_{k + 1}": state.critics_target.cut(k) for k in range(2)},
        },
        {
            **{name: name for name in same},
            **{name.format(k): name.format(k) for name in per_critic for k in (1, 2)},
            "policy_loss": "actor_loss",
            "qf_loss": "critic_loss",
            "average_target_q": "target_q",
            "alpha_prime": lambda row: row.get("alpha_prime", 0.0),
            "alpha_prime_loss": lambda row: row.get("alpha_prime_loss", 0.0),
        },
        probe,
    )
