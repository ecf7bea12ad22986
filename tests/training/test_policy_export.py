"""The exported policy acts as the actor does, or training ends with an error."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
from aspc.algorithms import default
from aspc.algorithms.interface import PolicyExport, Spec
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.td_learning import deterministic_policy
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.networks import ACTIVATIONS, MLP, DeterministicActor
from aspc.policy_kinds import ACTIVATIONS as NUMPY_ACTIVATIONS
from aspc.policy_kinds import KINDS
from aspc.training.policy_export import COMPARED_OBSERVATIONS, _comparison_noise
from registries import number_names

SPEC = Spec(5, 2)
OPTIONS: dict[str, Any] = {"steps": 4, "log_every": 2, "eval_every": 4, "env": None, "quiet": True}


def with_activation(state: Any, activation: Any) -> Any:
    """Return a state whose MLPs have another activation."""

    def replaced(part: Any) -> Any:
        return dataclasses.replace(part, activation=activation) if isinstance(part, MLP) else part

    return jax.tree.map(replaced, state, is_leaf=lambda part: isinstance(part, MLP))


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@pytest.mark.parametrize("name", number_names())
def test_the_activation_is_read_from_the_network(name: str, activation: str) -> None:
    algorithm = default(name)
    state = with_activation(algorithm.init(jax.random.key(0), SPEC), ACTIVATIONS[activation])
    export = algorithm.policy(state)
    assert export.act is not None
    assert export.settings["activation"] == activation
    observations = np.random.default_rng(1).standard_normal((COMPARED_OBSERVATIONS, SPEC.obs_dim), np.float32)
    arrays = {name: np.asarray(array) for name, array in export.arrays.items()}
    noise = _comparison_noise(export.kind, arrays, export.settings, SPEC.obs_dim)
    exported = KINDS[export.kind].act(arrays, export.settings, observations, *noise)
    np.testing.assert_allclose(exported, export.act(jnp.asarray(observations), *noise), atol=1e-5)
    with_relu = KINDS[export.kind].act(arrays, {**export.settings, "activation": "relu"}, observations, *noise)
    assert np.abs(exported - with_relu).max() > 1e-4


def test_both_forms_of_an_activation_agree() -> None:
    assert ACTIVATIONS.keys() == NUMPY_ACTIVATIONS.keys()
    x = np.linspace(-90, 90, 2001, dtype=np.float32)
    for name, activation in ACTIVATIONS.items():
        np.testing.assert_allclose(NUMPY_ACTIVATIONS[name](x), activation(x), rtol=2e-6, atol=2e-6, err_msg=name)


def test_an_activation_without_a_name_is_exported_as_a_program() -> None:
    actor = with_activation(default("td3_bc").init(jax.random.key(0), SPEC), jnp.sin).actor
    export = deterministic_policy(actor.net)
    assert export.kind == "program"
    observations = np.random.default_rng(0).standard_normal((5, SPEC.obs_dim), np.float32)
    arrays = {name: np.asarray(array) for name, array in export.arrays.items()}
    np.testing.assert_allclose(
        KINDS["program"].act(arrays, export.settings, observations), actor(observations), atol=1e-5
    )


@dataclass(frozen=True)
class GeluActor(TD3BC[Any]):
    """TD3+BC whose actor has GELU units."""

    def make_networks(self, key: Any, spec: Spec) -> tuple[Any, ...]:
        actor, critics = super().make_networks(key, spec)
        return DeterministicActor(dataclasses.replace(actor.net, activation=jax.nn.gelu), spec.max_action), critics


@dataclass(frozen=True)
class WrongExport(GeluActor):
    """The same, with an export that claims ReLU."""

    def policy(self, state: Any) -> PolicyExport:
        export = super().policy(state)
        return export._replace(settings={**export.settings, "activation": "relu"})


@dataclass(frozen=True)
class LateWrongExport(TD3BC[Any]):
    """An export that is right for the initial state alone."""

    def policy(self, state: Any) -> PolicyExport:
        export, last = super().policy(state), f"layers.{self.actor_hidden_layers}.bias"
        steps = state.actor_opt[0].count
        return export._replace(arrays={**export.arrays, last: export.arrays[last] + (steps > 0)})


def test_a_custom_activation_is_deployed(tiny: Dataset, tmp_path: Path) -> None:
    run = aspc.train(tiny, algo=GeluActor(batch_size=16), out=tmp_path / "run", **OPTIONS)
    policy = aspc.load_policy(run.path)
    assert policy.settings["activation"] == "gelu"


def test_a_wrong_export_is_refused_before_the_first_step(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(AspcError, match=r"differs from its actor by .*activation relu"):
        aspc.train(tiny, algo=WrongExport(batch_size=16), out=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_a_policy_is_compared_again_when_it_is_saved(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(AspcError, match="differs from its actor by"):
        aspc.train(tiny, algo=LateWrongExport(batch_size=16), out=tmp_path / "run", **OPTIONS)
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert not (tmp_path / "run" / "policy").exists()


def test_seeds_are_compared_with_their_own_actors(tiny: Dataset, tmp_path: Path) -> None:
    """A comparison with another run's actor would fail, since each seed has its own weights."""
    run = aspc.train(tiny, algo=GeluActor(batch_size=16), seeds=[0, 1, 2], out=tmp_path / "run", **OPTIONS)
    assert len(list((run.path / "policy").iterdir())) == 3
