"""One adapter an algorithm: how its reference trainer named settings, networks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.base import INNER, SCALE, Batch, Noise, Parts
from aspc.algorithms.iql import IQL
from aspc.algorithms.rebrac import ReBRAC
from aspc.algorithms.td3_bc import TD3BC, TD3State
from aspc.algorithms.wpc import WPC
from aspc.errors import AspcError, unknown_name
from aspc.networks import Critic, DeterministicActor, Ensemble, GaussianActor, Value
from aspc.optim import global_norm
from aspc.verify import Check, Compiled, Row, Trace, relative_error, replay
from aspc.verify.networks import Arrays, Loader, flax_mlp, float64, stack, torch_halves, torch_mlp, under

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

    def load(self, trace: Trace, group: str) -> dict[str, Any]:
        names = {name.split("/")[0] for name in trace.group(group)}
        return {name: self.loaders[name](trace.group(f"{group}/{name}")) for name in names}


def replay_with(adapter: Adapter, trace: Trace, compiled: Compiled | None = None) -> tuple[Any, list[Row]]:
    def norms(state: Any) -> Row:
        return {f"norm/{name}": global_norm(network) for name, network in adapter.networks(state).items()}

    state = adapter.start(adapter.load(trace, "init"))
    return replay(adapter.algorithm, state, trace, adapter.probe, norms, compiled)


def check(make: Callable[[Trace], Adapter], trace: Trace) -> list[Check]:
    """Replay, and compare every array under `out/`, `norm/` and `final/`."""
    adapter = make(trace)
    state, rows = replay_with(adapter, trace)
    return compare_outputs(adapter, trace, rows) + compare_networks(adapter, trace, rows, state)


def compare_outputs(adapter: Adapter, trace: Trace, rows: list[Row]) -> list[Check]:
    checks = []
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
        **{f"critic_{k + 1}": critics[k] for k in range(2)},
        **{f"critic_{k + 1}_target": targets[k] for k in range(2)},
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


def check_aspc(trace: Trace, outer_losses: Mapping[int, str] = OUTER_LOSSES) -> list[Check]:
    """Every outer loss of the file, each from the same start. `outer_losses` can be changed to see the check fail."""
    meta, base, checks = trace.meta, td3_bc(trace), []
    k_alpha = meta["alpha_freq"]
    compiled: Compiled = {}  # all but the step that updates the scale is common to the outer losses
    for setting in meta["loss_functions"]:
        algorithm = AdaptiveScale(
            base=base.algorithm,
            scale_lr=meta["alpha_lr"] * 10 / k_alpha,
            scale_lr_final_ratio=meta["alpha_lr_final_ratio"],
            k_alpha=k_alpha,
            ema=meta["ema"],
            outer_loss=outer_losses[setting],  # type: ignore[arg-type]
            horizon=meta["alpha_lr_horizon_steps"],
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
        compiled = {parts: program for parts, program in compiled.items() if SCALE not in parts}
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
        horizon=meta["cosine_max_steps"],
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
