"""Verification of ASPC traces. Each trace contains the results of training with several outer losses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aspc.adaptive_scale import AdaptiveScale, AdaptiveState, OuterLoss
from aspc.algorithms.interface import Batch, Noise, Parts
from aspc.algorithms.td3 import TD3State
from aspc.algorithms.td3_bc import TD3BC
from aspc.lab.reference.adapter import Adapter, compare_networks, replay_with, require
from aspc.lab.reference.adapters.td3_family import td3_bc
from aspc.lab.reference.replay import CompiledSteps, Row, Trace, TraceCheck, relative_error

OUTER_LOSSES: dict[int, OuterLoss] = {1: "L1", 2: "L1+L2", 3: "L1+L3", 4: "L1+L2+L3"}


def check_aspc(
    trace: Trace, outer_losses: Mapping[int, OuterLoss] = OUTER_LOSSES, compiled: CompiledSteps | None = None
) -> list[TraceCheck]:
    """Replay a trace once per outer loss, from the same initial state, and compare the results with the trace.

    Args:
        trace: The trace to replay.
        outer_losses: The outer loss that each number in the trace stands for. Tests pass wrong losses to check that
            verification fails.
        compiled: Cache of compiled steps, shared between replays.
    """
    meta, base = trace.meta, td3_bc(trace)
    assert isinstance(base.algorithm, TD3BC)
    checks: list[TraceCheck] = []
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
            outer_loss=outer_losses[setting],
            scale_horizon=meta["alpha_lr_horizon_steps"],
        )
        adapter = adapt_scale(algorithm, base)
        state, rows = replay_with(adapter, trace, compiled)
        checks += compare_aspc_outputs(trace, f"loss{setting}", state, rows)
        if setting == meta["final_loss_function"]:
            checks += compare_networks(adapter, trace, rows, state)
    return checks


def adapt_scale(algorithm: AdaptiveScale[TD3BC[TD3State]], base: Adapter[TD3State]) -> Adapter[AdaptiveState]:
    """Return an adapter for a base algorithm with a learned scale. Its rows contain the scale before each step."""

    def probe(state: AdaptiveState, batch: Batch, noise: Noise, parts: Parts) -> Row:
        return {"scale": state.scale.scale}

    return Adapter(
        algorithm,
        lambda networks: algorithm.start(base.start(networks)),
        base.loaders,
        lambda state: base.networks(state.base),
        {},
        probe,
    )


def compare_aspc_outputs(trace: Trace, group: str, state: AdaptiveState, rows: list[Row]) -> list[TraceCheck]:
    """Compare a replay's metrics with the trace. A metric is NaN at steps that do not report it."""

    def column(name: str) -> np.ndarray:
        return np.array([row.get(name, np.nan) for row in rows], np.float64)

    scale_after = np.append(column("scale")[1:], state.scale.scale)
    ours = {
        "alpha": scale_after,
        "critic_loss": column("critic_loss"),
        "actor_q_mean": column("actor_q_mean"),
        "abs_delta_ema_q": np.abs(column("delta_ema_q")),
        "bc_sup": column("bc_sup"),
        "delta_bc_sup": column("delta_bc_sup"),
        "ema_q_final": state.scale.ema_q,
    }
    origin = {"alpha": trace.meta["alpha"]}  # compare the change from the initial value
    return [
        TraceCheck(f"out/{group}/{name}", relative_error(ours[name], expected, origin.get(name, 0.0)))
        for name, expected in trace.group(f"out/{group}").items()
    ]
