"""Adapter for IQL traces."""

from __future__ import annotations

from typing import Any

from aspc.algorithms.interface import Batch, Noise, Parts
from aspc.algorithms.iql import IQL, IQLState
from aspc.lab.reference.adapter import Adapter, load_critic, load_value, require
from aspc.lab.reference.replay import Row, Trace
from aspc.lab.reference.trace_networks import (
    Arrays,
    float64,
    stack,
    strip_prefix,
    torch_mlp,
)
from aspc.networks import (
    DeterministicActor,
    Ensemble,
    GaussianActor,
)


def iql(trace: Trace) -> Adapter[IQLState]:
    """Return the adapter for an IQL trace."""
    meta = trace.meta
    require(meta, dropout=None, log_std_min=-20.0, log_std_max=2.0, cosine_eta_min=0.0)
    algorithm = IQL(
        beta=meta["beta"],
        expectile=meta["iql_tau"],
        deterministic=meta["policy"] == "deterministic",
        max_weight=meta["exp_adv_max"],
        discount=meta["discount"],
        tau=meta["tau"],
        actor_lr=meta["lr_actor"],
        critic_lr=meta["lr_q"],
        value_lr=meta["lr_v"],
        lr_horizon=meta["cosine_max_steps"],
    )

    def load_actor(arrays: Arrays) -> Any:
        mean = DeterministicActor(torch_mlp(strip_prefix(arrays, "net.")))
        return GaussianActor(mean, float64(arrays["log_std"])) if "log_std" in arrays else mean

    def load_twin_q(arrays: Arrays) -> Ensemble:
        return stack(*(load_critic(strip_prefix(arrays, f"q{k}.")) for k in (1, 2)))

    def probe(state: IQLState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        ctx = algorithm.prepare(state, batch, noise, parts)
        lr = algorithm.inner_optimizer().learning_rate(state.actor_opt[0].count)  # type: ignore[operator]
        return {"adv": ctx.extra, "exp_adv": algorithm.weights(ctx, algorithm.beta), "actor_lr": lr}

    same = ("value_loss", "actor_loss", "v_mean", "adv", "exp_adv", "actor_lr")
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["qf"], networks["vf"]),
        {"actor": load_actor, "qf": load_twin_q, "q_target": load_twin_q, "vf": load_value},
        lambda s: {"actor": s.actor, "qf": s.critics, "q_target": s.critics_target, "vf": s.value},
        {**{name: name for name in same}, "q_loss": "critic_loss"},
        probe,
    )
