"""Adapter for Diffusion-QL traces."""

from __future__ import annotations

import jax

from aspc.algorithms.diffusion_ql import DiffusionQL, DiffusionQLState, DiffusionSchedule
from aspc.lab.reference.adapter import Adapter, require, with_target
from aspc.lab.reference.replay import Trace
from aspc.lab.reference.trace_networks import (
    Arrays,
    layer_names,
    stack,
    strip_prefix,
    torch_mlp,
    torch_sequence,
)
from aspc.networks import (
    Critic,
    Ensemble,
    NoiseModel,
)


def diffusion_ql(trace: Trace) -> Adapter[DiffusionQLState]:
    """Return the adapter for a Diffusion-QL trace."""
    meta = trace.meta
    require(meta, beta_schedule="vp", vp_b_min=0.1, vp_b_max=10.0, lr_decay=False, clip_denoised=True)
    require(meta, predict_epsilon=True, loss="l2")
    algorithm = DiffusionQL(
        eta=meta["eta"],
        max_q_backup=meta["max_q_backup"],
        max_grad_norm=meta["grad_norm"],
        diffusion_steps=meta["n_timesteps"],
        discount=meta["discount"],
        tau=meta["tau"],
        ema_rate=1 - meta["ema_decay"],
        ema_every=meta["update_ema_every"],
        ema_start=meta["step_start_ema"],
        actor_lr=meta["lr_actor"],
        critic_lr=meta["lr_critic"],
    )

    def load_actor(arrays: Arrays) -> NoiseModel:
        middle = [f"mid_layer.{layer}" for layer in layer_names(strip_prefix(arrays, "mid_layer."))]
        return NoiseModel(
            torch_mlp(strip_prefix(arrays, "time_mlp."), jax.nn.mish),
            torch_sequence(arrays, [*middle, "final_layer"], jax.nn.mish),
            meta["max_action"],
        )

    def load_twin_q(arrays: Arrays) -> Ensemble:
        return stack(*(Critic(torch_mlp(strip_prefix(arrays, f"q{k}_model."), jax.nn.mish)) for k in (1, 2)))

    diffusion = DiffusionSchedule.vp(meta["n_timesteps"])
    same = ("bc_loss", "actor_loss", "critic_loss", "critic_grad_norm", "actor_grad_norm", "q1_mean", "q2_mean")
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["critic"]),
        {"actor": load_actor, "ema_actor": load_actor, **with_target("critic", load_twin_q)},
        lambda state: {
            "actor": state.actor,
            "ema_actor": state.actor_ema,
            "critic": state.critics,
            "critic_target": state.critics_target,
        },
        {
            **{name: name for name in same},
            "ql_loss": "q_loss",
            **{f"q{k}_new_action_mean": f"actor_q{k}_mean" for k in (1, 2)},
        },
        constants={
            "schedule/alphas_cumprod": diffusion.alphas_cumprod,
            "schedule/posterior_variance": diffusion.posterior_std**2,
            "schedule/posterior_mean_coef1": diffusion.posterior_mean_coef1,
            "schedule/posterior_mean_coef2": diffusion.posterior_mean_coef2,
        },
    )
