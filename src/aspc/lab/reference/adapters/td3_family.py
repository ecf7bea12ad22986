"""Adapters for the traces of TD3+BC, wPC, A2PR and ReBRAC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from aspc.algorithms.a2pr import A2PR, A2PRState
from aspc.algorithms.interface import INNER, Batch, Noise, Parts
from aspc.algorithms.rebrac import ReBRAC
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.wpc import WPC, WPCState
from aspc.lab.reference.adapter import Adapter, get_twin_critics, load_critic, load_value, require, with_target
from aspc.lab.reference.replay import Row, Trace
from aspc.lab.reference.trace_networks import (
    Arrays,
    Loader,
    flax_mlp,
    split_twin_module,
    stack,
    torch_mlp,
    torch_sequence,
)
from aspc.networks import (
    VAE,
    Critic,
    DeterministicActor,
    Ensemble,
)


def td3_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that TD3+BC, wPC and A2PR share."""
    # In the trace, noise is in action units. In this library, it is relative to the largest action.
    high = meta["max_action"]
    same = {name: meta[name] for name in ("alpha", "discount", "tau", "policy_freq")}
    return {
        **same,
        "policy_noise": meta["policy_noise"] / high,
        "noise_clip": meta["noise_clip"] / high,
        "actor_lr": meta["lr_actor"],
        "critic_lr": meta["lr_critic"],
    }


def load_twins(arrays: Arrays) -> Ensemble:
    """Build both critics from the arrays of a module that contains both."""
    return stack(*(load_critic(half) for half in split_twin_module(arrays)))


def td3_loaders(meta: Mapping[str, Any]) -> dict[str, Loader]:
    """Return the loaders for the actor, the critics and their target networks."""
    return {
        **with_target("actor", lambda arrays: DeterministicActor(torch_mlp(arrays), meta["max_action"])),
        **with_target("critic_1", load_critic),
        **with_target("critic_2", load_critic),
        **with_target("critic", load_twins),
    }


def td3_networks(state: TD3State) -> dict[str, Any]:
    """Return the actor, the critics and their targets in a state. Each critic is also listed individually."""
    critics, targets = state.critics, state.critics_target
    return {
        "actor": state.actor,
        "actor_target": state.actor_target,
        "critic": critics,
        "critic_target": targets,
        **{f"critic_{k + 1}": critics.cut(k) for k in range(2)},
        **{f"critic_{k + 1}_target": targets.cut(k) for k in range(2)},
    }


TD3_OUTPUTS = {
    **{name: name for name in ("critic_loss", "q_mean", "actor_loss", "actor_q_mean", "lmbda")},
    "bc_term": "bc_loss",
}


def td3_bc(trace: Trace) -> Adapter[TD3State]:
    """Return the adapter for a TD3+BC trace."""
    algorithm: TD3BC[TD3State] = TD3BC(**td3_settings(trace.meta))
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], get_twin_critics(networks)),
        td3_loaders(trace.meta),
        td3_networks,
        TD3_OUTPUTS,
    )


def wpc(trace: Trace) -> Adapter[WPCState]:
    """Return the adapter for a wPC trace."""
    algorithm = WPC(**td3_settings(trace.meta), value_lr=trace.meta["lr_vnet"])

    def probe(state: WPCState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        ctx = algorithm.prepare(state, batch, noise, parts)
        q = ctx.state.critics[0](batch.observations, batch.actions)
        return {"weight": algorithm.bc_weight(ctx), "advantage": ctx.extra, "q_after": q.mean()}

    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], get_twin_critics(networks), networks["vnet"]),
        {**td3_loaders(trace.meta), "vnet": load_value},
        lambda state: {**td3_networks(state), "vnet": state.value},
        {
            **TD3_OUTPUTS,
            "vnet_loss": "value_loss",
            "v_mean": "v_mean",
            "bc_weight": "weight",
            "q1_minus_v": "advantage",
            "q_data_after_update": "q_after",
        },
        probe,
    )


def a2pr(trace: Trace) -> Adapter[A2PRState]:
    """Return the adapter for an A2PR trace."""
    meta = trace.meta
    require(meta, kl_weight=0.5, vae_log_std_clip=(-4, 15))
    algorithm = A2PR(
        **td3_settings(meta),
        value_lr=meta["lr_value"],
        vae_lr=meta["lr_vae"],
        vae_weight=meta["vae_weight"],
        constraint_weight=meta["mask"],
    )

    def load_vae(arrays: Arrays) -> VAE:
        # The mean and log σ have separate layers in the trace, but share a layer in this library.
        heads = {p: np.concatenate([arrays[f"mean.{p}"], arrays[f"log_std.{p}"]]) for p in ("weight", "bias")}
        arrays = {**arrays, **{f"heads.{p}": array for p, array in heads.items()}}
        encoder, decoder = (torch_sequence(arrays, names) for names in (("e1", "e2", "heads"), ("d1", "d2", "d3")))
        return VAE(encoder, decoder, meta["max_action"])

    def probe(state: A2PRState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        ctx = algorithm.prepare(state, batch, noise, parts)
        q_data, v = ctx.extra
        row = {"advantage": q_data - v, "vae_mask": q_data > v}
        if INNER in parts:
            proposal = algorithm.propose(ctx, ctx.state.actor(batch.observations))
            row |= {
                "choose_recon": proposal.chosen,
                "adv_gate": proposal.gate,
                "q_recon_minus_q_data": proposal.q - q_data,
                "q_recon_minus_v": proposal.q - v,
            }
        return row

    def on_actor_steps(value: Callable[[Row], Any]) -> Callable[[Row], Any]:
        return lambda row: value(row) if "actor_loss" in row else None

    same = ("critic_loss", "value_loss", "vae_loss", "bc_loss", "lmbda", "vae_mask")
    margins = ("choose_recon", "adv_gate", "q_recon_minus_q_data", "q_recon_minus_v")
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["critic"], networks["value"], networks["vae"]),
        {**td3_loaders(meta), "value": load_value, "vae": load_vae},
        lambda state: {**td3_networks(state), "value": state.value, "vae": state.vae},
        {
            **{name: name for name in same + margins},
            "recon_loss": "vae_reconstruction",
            "KL_loss": "vae_kl",
            "value_mean": "v_mean",
            "q_vae_minus_v": "advantage",
            "Q_value": "actor_q_mean",
            "combined_loss": "actor_loss",
            "actor_loss": on_actor_steps(lambda row: row["actor_loss"] - row["bc_loss"]),
            "targ_Q": on_actor_steps(lambda row: row["td_target_online"]),
            "target_Q": on_actor_steps(lambda row: row["td_target"]),
        },
        probe,
    )


def rebrac(trace: Trace) -> Adapter[TD3State]:
    """Return the adapter for a ReBRAC trace."""
    meta = trace.meta
    algorithm = ReBRAC(
        beta1=meta["actor_bc_coef"],
        beta2=meta["critic_bc_coef"],
        discount=meta["gamma"],
        tau=meta["tau"],
        policy_noise=meta["policy_noise"],
        noise_clip=meta["noise_clip"],
        policy_freq=meta["policy_freq"],
        normalize_q=meta["normalize_q"],
        actor_lr=meta["lr_actor"],
        critic_lr=meta["lr_critic"],
    )
    load_mlp = partial(flax_mlp, eps=meta["layernorm_eps"])

    def probe(state: TD3State, batch: Batch, noise: Noise, parts: Parts) -> Row:
        if INNER not in parts:
            return {}
        return {"random_mse": jnp.square(noise["random_actions"] - batch.actions).sum(-1).mean()}

    def action_mse(row: Row) -> Any:
        return row["bc_loss"] / meta["act_dim"] if "bc_loss" in row else None

    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["critic"]),
        {
            **with_target("actor", lambda arrays: DeterministicActor(load_mlp(arrays))),
            **with_target("critic", lambda arrays: Ensemble(Critic(load_mlp(arrays)))),
        },
        td3_networks,
        {
            **{name: name for name in ("critic_loss", "q_min", "actor_loss")},
            "bc_mse_policy": "bc_loss",
            "bc_mse_random": "random_mse",
            "action_mse": action_mse,
        },
        probe,
    )
