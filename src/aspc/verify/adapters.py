"""How each reference trainer named its arrays, and how they map to the states of this library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspc.adaptive_scale import AdaptiveScale, AdaptiveState
from aspc.algorithms.td3_bc import TD3BC, TD3State
from aspc.errors import unknown_name
from aspc.networks import MLP, Critic, DeterministicActor, Ensemble, LayerNorm, Linear
from aspc.verify import Check, Trace, relative_error, replay

Arrays = Mapping[str, Any]


# ---------------------------------------------------------------------------------------------------------------
# Networks by their PyTorch names
# ---------------------------------------------------------------------------------------------------------------


def _layer_order(name: str) -> list:
    """`net.10.weight` after `net.9.weight`: numbers compare as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def torch_layers(arrays: Arrays) -> list[str]:
    """The layers of a sequential network (`net.0`, `net.2`, …), in order."""
    return sorted({name.rpartition(".")[0] for name in arrays if name.endswith(".weight")}, key=_layer_order)


def load_torch_mlp(arrays: Arrays, activation: Callable = jax.nn.relu) -> MLP:
    """A matrix is a Linear layer (stored [out, in]), a vector a LayerNorm."""
    layers, norms = [], []
    for layer in torch_layers(arrays):
        weight, bias = (jnp.asarray(arrays[f"{layer}.{p}"], jnp.float64) for p in ("weight", "bias"))
        if weight.ndim == 2:
            layers.append(Linear(weight.T, bias))
        else:
            norms.append(LayerNorm(weight, bias))
    return MLP(tuple(layers), tuple(norms), activation)


def dump_torch_mlp(net: MLP, like: Arrays) -> dict[str, np.ndarray]:
    """The inverse of `load_torch_mlp`, under the names that `like` has."""
    layers, norms = iter(net.layers), iter(net.norms)
    out = {}
    for layer in torch_layers(like):
        if np.ndim(like[f"{layer}.weight"]) == 2:
            linear = next(layers)
            out[f"{layer}.weight"], out[f"{layer}.bias"] = (
                np.asarray(linear.weight).T,
                np.asarray(linear.bias),
            )
        else:
            norm = next(norms)
            out[f"{layer}.weight"], out[f"{layer}.bias"] = np.asarray(norm.scale), np.asarray(norm.bias)
    return out


def stack(*networks: Any) -> Ensemble:
    """Separate networks as one ensemble."""
    return Ensemble(jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks))


# ---------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------


def global_norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(v, np.float64)).sum() for v in arrays.values())))


def compare_outputs(trace: Trace, rows: list[tuple[int, dict]], names: Mapping[str, str]) -> list[Check]:
    """`out/<theirs>` against our metric, on the steps where the metric exists."""
    checks = []
    for theirs, ours in names.items():
        expected = trace.arrays[f"out/{theirs}"]
        got = [row[ours] for _, row in rows if ours in row]
        checks.append(Check(f"out/{theirs}", relative_error(np.stack(got) if got else [], expected)))
    return checks


def compare_networks(trace: Trace, rows: list, final: Mapping[str, Arrays]) -> list[Check]:
    """`final/<net>/<param>` against the final state, `norm/<net>` against the norms after each step."""
    checks = []
    for net, params in final.items():
        for param, expected in trace.group(f"final/{net}").items():
            checks.append(Check(f"final/{net}/{param}", relative_error(params[param], expected)))
        if f"norm/{net}" in trace.arrays:
            norms = [row[f"norm/{net}"] for _, row in rows]
            checks.append(Check(f"norm/{net}", relative_error(norms, trace.arrays[f"norm/{net}"])))
    return checks


# ---------------------------------------------------------------------------------------------------------------
# TD3+BC and ASPC
# ---------------------------------------------------------------------------------------------------------------


def td3_bc_config(meta: Mapping[str, Any], trace: Trace) -> TD3BC:
    critic = trace.group("init/critic_1")
    return TD3BC(
        alpha=meta["alpha"],
        discount=meta["discount"],
        tau=meta["tau"],
        # The file's noise is in units of the action, ours in units of the largest action.
        policy_noise=meta["policy_noise"] / meta["max_action"],
        noise_clip=meta["noise_clip"] / meta["max_action"],
        policy_freq=meta["policy_freq"],
        actor_lr=meta["lr_actor"],
        critic_lr=meta["lr_critic"],
        critic_layer_norm=any(np.ndim(v) == 1 for k, v in critic.items() if k.endswith("weight")),
    )


def td3_networks(trace: Trace) -> tuple[DeterministicActor, Ensemble]:
    actor = DeterministicActor(load_torch_mlp(trace.group("init/actor")), trace.meta["max_action"])
    critics = stack(*(Critic(load_torch_mlp(trace.group(f"init/critic_{k}"))) for k in (1, 2)))
    return actor, critics


def td3_dump(state: TD3State, trace: Trace) -> dict[str, Arrays]:
    """Every network of the state under the trace's names."""
    nets: dict[str, Arrays] = {}
    for suffix, actor, critics in (
        ("", state.actor, state.critics),
        ("_target", state.actor_target, state.critics_target),
    ):
        nets[f"actor{suffix}"] = dump_torch_mlp(actor.net, trace.group("init/actor"))
        for k in (1, 2):
            nets[f"critic_{k}{suffix}"] = dump_torch_mlp(critics[k - 1].net, trace.group(f"init/critic_{k}"))
    return nets


def norms(networks: Mapping[str, Arrays]) -> dict[str, float]:
    return {f"norm/{name}": global_norm(params) for name, params in networks.items()}


def check_td3_bc(trace: Trace) -> list[Check]:
    algorithm = td3_bc_config(trace.meta, trace)
    state, rows = replay(algorithm, algorithm.start(*td3_networks(trace)), trace, lambda s: norms(td3_dump(s, trace)))
    outputs = {
        "critic_loss": "critic_loss",
        "q_mean": "q_mean",
        "actor_loss": "actor_loss",
        "actor_q_mean": "actor_q_mean",
        "lmbda": "lmbda",
        "bc_term": "bc_loss",
    }
    return compare_outputs(trace, rows, outputs) + compare_networks(trace, rows, td3_dump(state, trace))


OUTER_LOSSES = {1: "L1", 2: "L1+L2", 3: "L1+L3", 4: "L1+L2+L3"}


def check_aspc(trace: Trace, outer_losses: Mapping[int, str] = OUTER_LOSSES) -> list[Check]:
    """Every outer loss of the file, each from the same start. `outer_losses` can be changed to see the check fail."""
    meta, checks = trace.meta, []
    k_alpha = meta["alpha_freq"]
    for setting in meta["loss_functions"]:
        algorithm = AdaptiveScale(
            base=td3_bc_config(meta, trace),
            scale_lr=meta["alpha_lr"] * 10 / k_alpha,
            scale_lr_final_ratio=meta["alpha_lr_final_ratio"],
            k_alpha=k_alpha,
            ema=meta["ema"],
            outer_loss=outer_losses[setting],  # type: ignore[arg-type]
            horizon=meta["alpha_lr_horizon_steps"],
        )
        state = algorithm.start(algorithm.base.start(*td3_networks(trace)))  # type: ignore[attr-defined]
        state, rows = replay(algorithm, state, trace, lambda s: {"alpha": np.asarray(s.scale.scale)})
        checks += check_aspc_outputs(trace, f"loss{setting}", state, rows)
        if setting == meta["final_loss_function"]:
            checks += compare_networks(trace, rows, td3_dump(state.base, trace))
    return checks


def check_aspc_outputs(trace: Trace, group: str, state: AdaptiveState, rows: list) -> list[Check]:
    """These files have a value for each step, NaN where a metric does not exist."""
    expected = trace.group(f"out/{group}")

    def column(name: str) -> list[float]:
        return [abs(float(row[name])) if name in row else np.nan for _, row in rows]

    q_mean = [float(row["actor_q_mean"]) if "actor_q_mean" in row else np.nan for _, row in rows]
    ours = {
        "alpha": column("alpha"),
        "critic_loss": column("critic_loss"),
        "actor_q_mean": q_mean,
        "abs_delta_ema_q": column("delta_ema_q"),
        "bc_sup": column("bc_sup"),
        "delta_bc_sup": column("delta_bc_sup"),
        "ema_q_final": state.scale.ema_q,
    }
    origin = {"alpha": trace.meta["alpha"]}  # compared by its displacement
    return [
        Check(f"out/{group}/{name}", relative_error(values, expected[name], origin.get(name, 0.0)))
        for name, values in ours.items()
    ]


_CHECKS: dict[str, Callable[[Trace], list[Check]]] = {"td3_bc": check_td3_bc, "aspc": check_aspc}


def check_for(trace: Trace) -> Callable[[Trace], list[Check]]:
    """The adapter of the trace's algorithm."""
    algo = trace.meta["algo"]
    if algo not in _CHECKS:
        raise unknown_name("algorithm of a trace", str(algo), _CHECKS)
    return _CHECKS[algo]
