"""Methods. A method is an algorithm together with the settings that distinguish it from other methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aspc.algorithms.registry import join_bc_term
from aspc.lab.results import parse_json

ALGORITHMS = {
    "aspc": "ASPC",
    "aspc_aw": "ASPC+AW",
    "aspc_plus": "ASPC+",
    "aspc_averaged": "ASPC, averaged policy",
    "td3_bc": "TD3+BC",
    "td3_bc_aw": "TD3+BC+AW",
    "td3_bc_two_policies": "TD3+BC, two policies",
    "mcep": "MCEP",
    "rapo": "RAPO",
    "wpc": "wPC",
    "a2pr": "A2PR",
    "iql": "IQL",
    "rebrac": "ReBRAC",
    "cql": "CQL",
    "diffusion_ql": "Diffusion-QL",
    "fql": "FQL",
    "bc": "BC",
}
# Settings that define a method. Other settings, such as network sizes and tuned values, do not affect its name.
SCALE_SETTINGS = (
    *("acting_ratio", "evaluation_alpha", "k_alpha", "l2", "l3_form", "outer_batch", "outer_loss", "scale_lr"),
    "scale_mode",
)
TD3_BC_SETTINGS = ("alpha", "critic_hidden_layers", "critic_layer_norm")
APPENDIX_D_SETTINGS = ("normalize_by", "penalty")  # of CQL and Diffusion-QL
DERIVED_SETTINGS = ("scale_target", "scale_horizon")  # derived from the dataset and the number of steps
# Algorithms that learn alpha on top of TD3+BC, although their names omit TD3+BC.
LEARNED_SCALE = ("aspc", "aspc_aw", "aspc_averaged", "aspc_plus", "rapo")
TD3_BC_FAMILY = (*LEARNED_SCALE, "mcep", "td3_bc", "td3_bc_aw", "td3_bc_two_policies", "wpc")


class Method(NamedTuple):
    """An algorithm and the settings that define the method, sorted by the settings' names."""

    algo: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        changes = dict(self.changes)
        base_name = "+".join(ALGORITHMS.get(part, part) for part in self.algo.split("+"))
        parts = []
        if changes.get("critic_hidden_layers") == 2 and changes.get("critic_layer_norm") is False:
            changes = {k: v for k, v in changes.items() if not k.startswith("critic_")}
            parts.append("without RC")
        parts += [_describe_setting(self.algo, key, value) for key, value in changes.items()]
        return ", ".join([base_name, *parts])


def _describe_setting(algo: str, key: str, value: Any) -> str:
    if key == "outer_loss":
        return f"{value} only" if value == "L1" else str(value)
    if key == "l3_form":
        return f"L3 form {value}"
    if key == "scale_mode":
        return f"{value} alpha"
    if key in ("l2", "penalty"):
        return f"{value} {key.upper() if key == 'l2' else key}"
    if key == "normalize_by":
        return f"normalized by the {value} critic"
    name = {"scale_lr": "lr", "alpha": "alpha0" if algo in LEARNED_SCALE else "alpha"}.get(key, key)
    return f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"


def method(algo: str, **changes: Any) -> Method:
    """Return the method that consists of an algorithm and these settings."""
    return Method(algo, tuple(sorted(changes.items())))


def method_of(algo: str, settings: Mapping[str, Any]) -> Method:
    """Return the method of a run, given its algorithm and its non-default settings."""
    keys = SCALE_SETTINGS + (TD3_BC_SETTINGS if algo in TD3_BC_FAMILY else APPENDIX_D_SETTINGS)
    return Method(algo, tuple(sorted((k, v) for k, v in settings.items() if k in keys)))


def algo_of(algo: str, settings: Any, config: Any) -> str:
    """Return the name of a run's algorithm, including its BC term.

    Older runs record the BC term separately, in the `settings` or `config` column.
    """
    return join_bc_term(algo, parse_json(settings).get("bc", parse_json(config).get("bc", "plain")))


def settings_of(settings: Any) -> dict[str, Any]:
    """Return a run's non-default settings, keyed by the last part of their dotted names.

    Args:
        settings: The value of the run's `settings` column (JSON text). Values that are not scalars are ignored.
    """
    found = {key.rpartition(".")[2]: value for key, value in parse_json(settings).items()}
    ignored = (*DERIVED_SETTINGS, "bc")
    return {k: v for k, v in found.items() if k not in ignored and isinstance(v, str | int | float | bool)}
