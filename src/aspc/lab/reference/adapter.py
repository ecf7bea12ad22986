"""Adapters, which map the settings, networks and metrics of a reference trainer to those of this library."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import jax

from aspc.algorithms.interface import Algorithm, Batch, Noise, Parts
from aspc.errors import AspcError
from aspc.lab.reference.replay import CompiledSteps, Row, Trace, TraceCheck, relative_error, replay
from aspc.lab.reference.trace_networks import Arrays, Loader, stack, torch_mlp
from aspc.networks import Critic, Ensemble, Value
from aspc.optim import global_norm

State = TypeVar("State")
Networks: TypeAlias = Mapping[str, Any]  # by name in the trace


def no_probe(state: object, batch: Batch, noise: Noise, parts: Parts) -> Row:
    """Return no quantities."""
    return {}


@dataclass(frozen=True)
class Adapter(Generic[State]):
    """Everything needed to replay a trace and to compute the quantities that it contains."""

    algorithm: Algorithm[State]
    """The algorithm with the trace's settings."""
    start: Callable[[Networks], State]
    """Function that builds the initial state from the networks under `init/`."""
    loaders: Mapping[str, Loader]
    """The loader for each network in the trace, including target networks."""
    networks: Callable[[State], Networks]
    """Function that extracts the same networks from a state."""
    outputs: Mapping[str, str | Callable[[Row], Any]]
    """For each metric under `out/`, its name in this library or a function that computes it from a step's row."""
    probe: Callable[[State, Batch, Noise, Parts], Row] = no_probe
    """Function that computes quantities that training does not report from the state before a step."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Expected values of trace arrays that do not depend on the replay, by the arrays' full names."""

    def load(self, trace: Trace, group: str) -> dict[str, Any]:
        """Build the networks from the arrays under a prefix of the trace, such as `init`."""
        names = sorted({name.split("/")[0] for name in trace.group(group)})
        check_known(names, self.loaders, "network")
        return {name: self.loaders[name](trace.group(f"{group}/{name}")) for name in names}


def check_known(names: Iterable[str], known: Container[str], kind: str) -> None:
    """Raise `AspcError` for a quantity that cannot be compared, since ignoring it could hide an error."""
    for name in names:
        if name not in known:
            raise AspcError(f"The trace contains an unknown {kind} {name!r}, which cannot be compared.")


def require(meta: Mapping[str, Any], **supported: Any) -> None:
    """Raise `AspcError` if a setting of the reference trainer is not supported by this library."""
    for name, value in supported.items():
        if meta.get(name, value) != value:
            raise AspcError(f"The trace has {name} = {meta[name]!r}, but only {value!r} is supported.")


def replay_with(
    adapter: Adapter[State], trace: Trace, compiled: CompiledSteps | None = None
) -> tuple[State, list[Row]]:
    """Replay a trace and return the final state and one row per step, which includes the norms of all networks."""

    def norms(state: State) -> Row:
        return {f"norm/{name}": global_norm(network) for name, network in adapter.networks(state).items()}

    state = adapter.start(adapter.load(trace, "init"))
    return replay(adapter.algorithm, state, trace, adapter.probe, norms, compiled)


def check_trace(make: Callable[[Trace], Adapter[State]], trace: Trace) -> list[TraceCheck]:
    """Replay a trace and return one check per array under `out/`, `norm/` and `final/`."""
    adapter = make(trace)
    state, rows = replay_with(adapter, trace)
    constants = [TraceCheck(name, relative_error(ours, trace.arrays[name])) for name, ours in adapter.constants.items()]
    return constants + compare_outputs(adapter, trace, rows) + compare_networks(adapter, trace, rows, state)


def compare_outputs(adapter: Adapter[State], trace: Trace, rows: list[Row]) -> list[TraceCheck]:
    """Compare the metrics in the rows of a replay with those under `out/`."""
    checks = []
    check_known(trace.group("out"), {*adapter.outputs, "actor_step_index"}, "metric")
    for theirs, expected in trace.group("out").items():
        if theirs == "actor_step_index":
            values = [row["step"] for row in rows if "actor_loss" in row]
        else:
            ours = adapter.outputs[theirs]
            # A metric that is computed only at some steps is absent from the rows of the other steps.
            lookup = partial(_get, ours) if isinstance(ours, str) else ours
            values = [value for value in map(lookup, rows) if value is not None]
        checks.append(TraceCheck(f"out/{theirs}", relative_error(values, expected)))
    return checks


def _get(name: str, row: Row) -> Any:
    return row.get(name)


def compare_networks(adapter: Adapter[State], trace: Trace, rows: list[Row], state: State) -> list[TraceCheck]:
    """Compare the networks' norms at every step, and their final weights."""
    checks = []
    for name in trace.group("norm"):
        norms = [row[f"norm/{name}"] for row in rows]
        checks.append(TraceCheck(f"norm/{name}", relative_error(norms, trace.arrays[f"norm/{name}"])))
    networks = adapter.networks(state)
    for name, expected in adapter.load(trace, "final").items():
        errors = jax.tree.map(relative_error, networks[name], expected)
        for path, error in jax.tree_util.tree_leaves_with_path(errors):
            checks.append(TraceCheck(f"final/{name}{jax.tree_util.keystr(path)}", error))
    return checks


# ── networks shared by several trainers ─────────────────────────────────────────────────────────────────────────────


def with_target(name: str, loader: Loader) -> dict[str, Loader]:
    """Return the same loader for a network and for its target network."""
    return {name: loader, f"{name}_target": loader}


def load_critic(arrays: Arrays) -> Critic:
    """Build a critic from PyTorch arrays."""
    return Critic(torch_mlp(arrays))


def load_value(arrays: Arrays) -> Value:
    """Build a value network from PyTorch arrays."""
    return Value(torch_mlp(arrays))


def get_twin_critics(networks: Networks) -> Ensemble:
    """Return both critics as an ensemble, whether the trainer stores them separately or in one module."""
    return networks["critic"] if "critic" in networks else stack(networks["critic_1"], networks["critic_2"])
