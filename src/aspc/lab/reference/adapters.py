"""One adapter an algorithm: how its reference trainer named settings, networks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.a2pr import A2PR
from aspc.algorithms.cql import CQL
from aspc.algorithms.diffusion_ql import DiffusionQL, DiffusionSchedule
from aspc.algorithms.fql import FQL
from aspc.algorithms.interface import INNER, Batch, Noise, Parts
from aspc.algorithms.iql import IQL
from aspc.algorithms.rebrac import ReBRAC
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.wpc import WPC
from aspc.errors import AspcError, unknown_name
from aspc.lab.reference.replay import Check, Compiled, Row, Trace, relative_error, replay
from aspc.lab.reference.trace_networks import (
    Arrays,
    Loader,
    flax_mlp,
    float64,
    layer_names,
    stack,
    torch_halves,
    torch_mlp,
    torch_sequence,
    under,
)
from aspc.networks import (
    VAE,
    Critic,
    DeterministicActor,
    Ensemble,
    Flow,
    GaussianActor,
    NoiseModel,
    SquashedGaussianActor,
    Value,
)
from aspc.optim import global_norm

Probe = Callable[[Any, Any, Batch, Noise, Parts], Row]


def no_probe(algorithm: Any, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
    return {}


@dataclass(frozen=True)
class Adapter:
    """What it takes to replay a trace and to find its quantities again."""

    algorithm: Any
    """With the trace's settings."""
    start: Callable[[Mapping[str, Any]], Any]
    """The initial state from the networks under `init/`, by name."""
    loaders: Mapping[str, Loader]
    """How each network of the trace is read, targets included."""
    networks: Callable[[Any], Mapping[str, Any]]
    """The same networks in a state."""
    outputs: Mapping[str, str | Callable[[Row], Any]]
    """Each metric under `out/`: its name here, or how it follows from a step's row."""
    probe: Probe = no_probe
    """Quantities that training does not report, from the pieces of the update."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Arrays of the trace that do not depend on the replay, by their full name."""

    def load(self, trace: Trace, group: str) -> dict[str, Any]:
        names = sorted({name.split("/")[0] for name in trace.group(group)})
        known(names, self.loaders, "network")
        return {name: self.loaders[name](trace.group(f"{group}/{name}")) for name in names}


def known(names: Iterable[str], ours: Container[str], what: str) -> None:
    """Refuse a trace that holds what could not be compared: silence would read as agreement."""
    for name in names:
        if name not in ours:
            raise AspcError(f"This trace holds the {what} {name!r}, which is not known here and cannot be compared.")


def replay_with(adapter: Adapter, trace: Trace, compiled: Compiled | None = None) -> tuple[Any, list[Row]]:
    def norms(state: Any) -> Row:
        return {f"norm/{name}": global_norm(network) for name, network in adapter.networks(state).items()}

    state = adapter.start(adapter.load(trace, "init"))
    return replay(adapter.algorithm, state, trace, adapter.probe, norms, compiled)


def check(make: Callable[[Trace], Adapter], trace: Trace) -> list[Check]:
    """Replay, and compare every array under `out/`, `norm/` and `final/`."""
    adapter = make(trace)
    state, rows = replay_with(adapter, trace)
    constants = [Check(name, relative_error(ours, trace.arrays[name])) for name, ours in adapter.constants.items()]
    return constants + compare_outputs(adapter, trace, rows) + compare_networks(adapter, trace, rows, state)


def compare_outputs(adapter: Adapter, trace: Trace, rows: list[Row]) -> list[Check]:
    checks = []
    known(trace.group("out"), {*adapter.outputs, "actor_step_index"}, "metric")
    for theirs, expected in trace.group("out").items():
        if theirs == "actor_step_index":
            got = [row["step"] for row in rows if "actor_loss" in row]
        else:
            ours = adapter.outputs[theirs]
            # A metric that exists on some steps only is absent from the other rows.
            value = partial(_lookup, ours) if isinstance(ours, str) else ours
            got = [v for v in map(value, rows) if v is not None]
        checks.append(Check(f"out/{theirs}", relative_error(got, expected)))
    return checks


def _lookup(name: str, row: Row) -> Any:
    return row.get(name)


def compare_networks(adapter: Adapter, trace: Trace, rows: list[Row], state: Any) -> list[Check]:
    checks = []
    for name in trace.group("norm"):
        norms = [row[f"norm/{name}"] for row in rows]
        checks.append(Check(f"norm/{name}", relative_error(norms, trace.arrays[f"norm/{name}"])))
    networks = adapter.networks(state)
    for name, expected in adapter.load(trace, "final").items():
        pairs = jax.tree.map(relative_error, networks[name], expected)
        for path, error in jax.tree_util.tree_leaves_with_path(pairs):
            checks.append(Check(f"final/{name}{jax.tree_util.keystr(path)}", error))
    return checks


def require(meta: Mapping[str, Any], **supported: Any) -> None:
    """Refuse a trace whose trainer was set to something that this library does not offer."""
    for name, value in supported.items():
        if meta.get(name, value) != value:
            raise AspcError(
                f"This trace has {name} = {meta[name]!r}; only {value!r} is offered here, so it cannot be replayed."
            )


def both(name: str, loader: Loader) -> dict[str, Loader]:
    """A network and its target are read alike."""
    return {name: loader, f"{name}_target": loader}


# ---------------------------------------------------------------------------------------------------------------
# TD3+BC, wPC, ASPC
# ---------------------------------------------------------------------------------------------------------------


def td3_settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    # The file's noise is in units of the action, ours in units of the largest action.
    high = meta["max_action"]
    same = {name: meta[name] for name in ("alpha", "discount", "tau", "policy_freq")}
    return {
        **same,
        "policy_noise": meta["policy_noise"] / high,
        "noise_clip": meta["noise_clip"] / high,
        "actor_lr": meta["lr_actor"],
        "critic_lr": meta["lr_critic"],
    }


def load_critic(arrays: Arrays) -> Critic:
    return Critic(torch_mlp(arrays))


def load_twins(arrays: Arrays) -> Ensemble:
    """Both critics from one module."""
    return stack(*(load_critic(half) for half in torch_halves(arrays)))


def load_value(arrays: Arrays) -> Value:
    return Value(torch_mlp(arrays))


def twins_of(networks: Mapping[str, Any]) -> Ensemble:
    """Both critics, whether the trainer kept them apart or in one module."""
    return networks["critic"] if "critic" in networks else stack(networks["critic_1"], networks["critic_2"])


def td3_loaders(meta: Mapping[str, Any]) -> dict[str, Loader]:
    return {
        **both("actor", lambda arrays: DeterministicActor(torch_mlp(arrays), meta["max_action"])),
        **both("critic_1", load_critic),
        **both("critic_2", load_critic),
        **both("critic", load_twins),
    }


def td3_networks(state: Any) -> dict[str, Any]:
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


def td3_bc(trace: Trace) -> Adapter:
    algorithm = TD3BC(**td3_settings(trace.meta))
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], twins_of(networks)),
        td3_loaders(trace.meta),
        td3_networks,
        TD3_OUTPUTS,
    )


def wpc(trace: Trace) -> Adapter:
    algorithm = WPC(**td3_settings(trace.meta), value_lr=trace.meta["lr_vnet"])

    def probe(algorithm: WPC, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
        ctx = algorithm.prepare(state, batch, noise, parts)
        q = ctx.state.critics[0](batch.observations, batch.actions)
        return {"weight": algorithm.bc_weight(ctx), "advantage": ctx.extra, "q_after": q.mean()}

    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], twins_of(networks), networks["vnet"]),
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


OUTER_LOSSES = {1: "L1", 2: "L1+L2", 3: "L1+L3", 4: "L1+L2+L3"}


def check_aspc(
    trace: Trace, outer_losses: Mapping[int, str] = OUTER_LOSSES, compiled: Compiled | None = None
) -> list[Check]:
    """Every outer loss of the file, each from the same start. `outer_losses` can be changed to see the check fail."""
    meta, base, checks = trace.meta, td3_bc(trace), []
    require(meta, reward_mean=0.0)
    k_alpha = meta["alpha_freq"]
    compiled = {} if compiled is None else compiled
    for setting in meta["loss_functions"]:
        algorithm = AdaptiveScale(
            base=base.algorithm,
            scale_lr=meta["alpha_lr"] * 10 / k_alpha,
            scale_lr_final_ratio=meta["alpha_lr_final_ratio"],
            k_alpha=k_alpha,
            ema=meta["ema"],
            outer_loss=outer_losses[setting],  # type: ignore[arg-type]
            scale_horizon=meta["alpha_lr_horizon_steps"],
        )
        wrap = algorithm.start
        adapter = Adapter(
            algorithm,
            lambda networks, wrap=wrap: wrap(base.start(networks)),  # type: ignore[misc]
            base.loaders,
            lambda state: base.networks(state.base),
            {},
            lambda algorithm, state, batch, noise, parts: {"scale": state.scale.scale},
        )
        state, rows = replay_with(adapter, trace, compiled)
        checks += compare_aspc_outputs(trace, f"loss{setting}", state, rows)
        if setting == meta["final_loss_function"]:
            checks += compare_networks(adapter, trace, rows, state)
    return checks


def compare_aspc_outputs(trace: Trace, group: str, state: Any, rows: list[Row]) -> list[Check]:
    """These files have a value for each step, NaN where a metric does not exist."""

    def column(name: str) -> np.ndarray:
        return np.array([row.get(name, np.nan) for row in rows], np.float64)

    # A step's row holds the scale before it.
    after = np.append(column("scale")[1:], state.scale.scale)
    ours = {
        "alpha": after,
        "critic_loss": column("critic_loss"),
        "actor_q_mean": column("actor_q_mean"),
        "abs_delta_ema_q": np.abs(column("delta_ema_q")),
        "bc_sup": column("bc_sup"),
        "delta_bc_sup": column("delta_bc_sup"),
        "ema_q_final": state.scale.ema_q,
    }
    origin = {"alpha": trace.meta["alpha"]}  # compared by its displacement
    return [
        Check(f"out/{group}/{name}", relative_error(ours[name], expected, origin.get(name, 0.0)))
        for name, expected in trace.group(f"out/{group}").items()
    ]


# ---------------------------------------------------------------------------------------------------------------
# IQL
# ---------------------------------------------------------------------------------------------------------------


def iql(trace: Trace) -> Adapter:
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
        mean = DeterministicActor(torch_mlp(under(arrays, "net.")))
        return GaussianActor(mean, float64(arrays["log_std"])) if "log_std" in arrays else mean

    def load_twin_q(arrays: Arrays) -> Ensemble:
        return stack(*(load_critic(under(arrays, f"q{k}.")) for k in (1, 2)))

    def probe(algorithm: IQL, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
        ctx = algorithm.prepare(state, batch, noise, parts)
        lr = algorithm.actor_adam().learning_rate(state.actor_opt[0].count)  # type: ignore[operator]
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


# ---------------------------------------------------------------------------------------------------------------
# ReBRAC
# ---------------------------------------------------------------------------------------------------------------


def rebrac(trace: Trace) -> Adapter:
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

    def probe(algorithm: ReBRAC, state: TD3State, batch: Batch, noise: Noise, parts: Parts) -> Row:
        if INNER not in parts:
            return {}
        return {"random_mse": jnp.square(noise["random_actions"] - batch.actions).sum(-1).mean()}

    def action_mse(row: Row) -> Any:
        return row["bc_loss"] / meta["act_dim"] if "bc_loss" in row else None

    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["critic"]),
        {
            **both("actor", lambda arrays: DeterministicActor(load_mlp(arrays))),
            **both("critic", lambda arrays: Ensemble(Critic(load_mlp(arrays)))),
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


# ---------------------------------------------------------------------------------------------------------------
# A2PR
# ---------------------------------------------------------------------------------------------------------------


def a2pr(trace: Trace) -> Adapter:
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
        # Mean and log σ are two layers there and the two halves of one layer here.
        heads = {p: np.concatenate([arrays[f"mean.{p}"], arrays[f"log_std.{p}"]]) for p in ("weight", "bias")}
        arrays = {**arrays, **{f"heads.{p}": array for p, array in heads.items()}}
        encoder, decoder = (torch_sequence(arrays, names) for names in (("e1", "e2", "heads"), ("d1", "d2", "d3")))
        return VAE(encoder, decoder, meta["max_action"])

    def probe(algorithm: A2PR, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
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


# ---------------------------------------------------------------------------------------------------------------
# FQL
# ---------------------------------------------------------------------------------------------------------------


def fql(trace: Trace) -> Adapter:
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

    def probe(algorithm: FQL, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
        actions = jnp.clip(state.one_step(batch.observations, noise["metric_action"]), -1, 1)
        new, _ = algorithm.update(state, batch, noise, parts)
        # The gradient is in the change of Adam's first moment: m' = 0.9·m + 0.1·g.
        moments = [[getattr(s, f"{name}_opt")[0].mu for name in ("critics", "flow", "one_step")] for s in (state, new)]
        grads = jax.tree.leaves(jax.tree.map(lambda m, m_new: (m_new - 0.9 * m) / 0.1, *moments))
        return {
            "actor_mse": jnp.square(actions - batch.actions).mean(),
            # As its authors log them: the sum of the tensors' norms; the targets' zeros count among the extremes.
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


# ---------------------------------------------------------------------------------------------------------------
# CQL
# ---------------------------------------------------------------------------------------------------------------


def cql(trace: Trace) -> Adapter:
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
        net = torch_mlp(under(arrays, "base_network."))
        multiplier, offset = (float64(arrays[f"log_std_{name}.constant"]) for name in ("multiplier", "offset"))
        return SquashedGaussianActor(net, multiplier, offset, meta["max_action"])

    def probe(algorithm: CQL, state: Any, batch: Batch, noise: Noise, parts: Parts) -> Row:
        """The reference logs each critic by itself."""
        ctx = algorithm.prepare(state, batch, noise, parts)
        penalty, n = algorithm.penalise(ctx, state.critics), algorithm.n_actions
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
        return load_critic(under(arrays, "network."))

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
        lambda networks: algorithm.start(networks["actor"], twins_of(networks)),
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


# ---------------------------------------------------------------------------------------------------------------
# Diffusion-QL
# ---------------------------------------------------------------------------------------------------------------


def diffusion_ql(trace: Trace) -> Adapter:
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
        middle = [f"mid_layer.{layer}" for layer in layer_names(under(arrays, "mid_layer."))]
        return NoiseModel(
            torch_mlp(under(arrays, "time_mlp."), jax.nn.mish),
            torch_sequence(arrays, [*middle, "final_layer"], jax.nn.mish),
            meta["max_action"],
        )

    def load_twin_q(arrays: Arrays) -> Ensemble:
        return stack(*(Critic(torch_mlp(under(arrays, f"q{k}_model."), jax.nn.mish)) for k in (1, 2)))

    diffusion = DiffusionSchedule.vp(meta["n_timesteps"])
    same = ("bc_loss", "actor_loss", "critic_loss", "critic_grad_norm", "actor_grad_norm", "q1_mean", "q2_mean")
    return Adapter(
        algorithm,
        lambda networks: algorithm.start(networks["actor"], networks["critic"]),
        {"actor": load_actor, "ema_actor": load_actor, **both("critic", load_twin_q)},
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


CHECKS: dict[str, Callable[[Trace], list[Check]]] = {
    "aspc": check_aspc,
    **{
        algo: partial(check, adapter)
        for algo, adapter in {
            "td3_bc": td3_bc,
            "wpc": wpc,
            "wpc_original": wpc,
            "iql": iql,
            "rebrac": rebrac,
            "a2pr": a2pr,
            "fql": fql,
            "cql": cql,
            "diffusion_ql": diffusion_ql,
        }.items()
    },
}


def check_for(trace: Trace) -> Callable[[Trace], list[Check]]:
    """The adapter of the trace's algorithm."""
    algo = trace.meta["algo"]
    if algo not in CHECKS:
        raise unknown_name("algorithm of a trace", str(algo), CHECKS)
    require(trace.meta, adam=(0.9, 0.999, 1e-08))
    return CHECKS[algo]
