"""Exported policies act in NumPy as the networks do in JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

from aspc import algorithms
from aspc.algorithms.cql import CQL
from aspc.algorithms.diffusion_ql import DiffusionQL
from aspc.algorithms.fql import FQL
from aspc.algorithms.interface import PolicyExport, Spec
from aspc.algorithms.iql import IQL
from aspc.algorithms.rebrac import ReBRAC
from aspc.policy_kinds import denoise, mlp

SPEC = Spec(obs_dim=7, act_dim=3)
OBSERVATIONS = np.random.default_rng(0).standard_normal((20, 7), np.float32)


def amplified(state: Any) -> Any:
    """Return a state with larger weights, so that no output is near 0."""
    return jax.tree.map(lambda x: 1.5 * x if jnp.issubdtype(x.dtype, jnp.floating) else x, state)


def in_numpy(export: PolicyExport) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {name: np.asarray(array) for name, array in export.arrays.items()}, export.settings


def act(export: PolicyExport, observations: np.ndarray = OBSERVATIONS, seed: int = 0) -> np.ndarray:
    return problems.act(export.kind, *in_numpy(export), observations, np.random.default_rng(seed))


@pytest.mark.parametrize("name", ["bc", "td3_bc", "wpc", "a2pr", "rebrac", "aspc"])
def test_deterministic_policies(name: str) -> None:
    algorithm = algorithms.default(name)
    state = amplified(algorithm.init(jax.random.key(0), SPEC))
    actor = state.base.actor if name == "aspc" else state.actor
    np.testing.assert_allclose(act(algorithm.policy(state)), actor(OBSERVATIONS), atol=1e-5)


def test_layer_norm_of_the_actor_is_exported() -> None:
    algorithm = ReBRAC(actor_layer_norm=True)
    state = amplified(algorithm.init(jax.random.key(0), SPEC))
    np.testing.assert_allclose(act(algorithm.policy(state)), state.actor(OBSERVATIONS), atol=1e-5)


@pytest.mark.parametrize("deterministic", [True, False])
def test_iql_acts_with_its_mean(deterministic: bool) -> None:
    algorithm = IQL(deterministic=deterministic)
    state = amplified(algorithm.init(jax.random.key(0), SPEC))
    np.testing.assert_allclose(act(algorithm.policy(state)), state.actor(OBSERVATIONS), atol=1e-5)


def test_cql_acts_with_tanh_of_its_mean() -> None:
    algorithm = CQL()
    state = algorithm.init(jax.random.key(0), SPEC)
    state = replace(state, actor=jax.tree.map(lambda x: x + 0.05, state.actor))
    without_noise, _ = state.actor.sample(OBSERVATIONS, jnp.zeros((20, 3)))
    assert np.abs(without_noise).max() > 0.1
    np.testing.assert_allclose(act(algorithm.policy(state)), without_noise, atol=1e-5)


def test_fql_acts_in_one_step() -> None:
    algorithm = FQL()
    state = amplified(algorithm.init(jax.random.key(0), SPEC))
    z = np.random.default_rng(5).standard_normal((20, 3), np.float32)
    expected = jnp.clip(state.one_step(OBSERVATIONS, z), -1, 1)
    np.testing.assert_allclose(act(algorithm.policy(state), seed=5), expected, atol=1e-5)


DIFFUSION = DiffusionQL()


@pytest.fixture(scope="module")
def diffusion_state() -> Any:
    return amplified(DIFFUSION.init(jax.random.key(0), SPEC))


def test_diffusion_sampling_and_critics_match(diffusion_state: Any) -> None:
    arrays, settings = in_numpy(DIFFUSION.policy(diffusion_state))
    noise = np.random.default_rng(1).standard_normal((6, 20, 3), np.float32)
    ours = denoise(arrays, settings, OBSERVATIONS, noise[0], noise[1:])
    theirs = DIFFUSION.sample(diffusion_state.actor, OBSERVATIONS, noise[0], noise[1:])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    q = mlp(arrays, settings, np.concatenate([OBSERVATIONS, ours], -1), "critics.")[..., 0]
    np.testing.assert_allclose(q, diffusion_state.critics_target(OBSERVATIONS, ours), atol=1e-5)


def test_the_critics_choose_by_softmax(diffusion_state: Any) -> None:
    """With critics that prefer a large first action, it becomes larger than the policy's own."""
    export = DIFFUSION.policy(diffusion_state)
    arrays = {
        name: np.zeros_like(a) if name.startswith("critics.") else np.asarray(a) for name, a in export.arrays.items()
    }
    indifferent = act(export._replace(arrays=arrays), np.repeat(OBSERVATIONS[:1], 100, 0))
    for layer in range(4):  # Q = 200·a₀ for positive activations: Mish is near the identity there
        arrays[f"critics.layers.{layer}.weight"][:, 7 if layer == 0 else 0, 0] = 20.0 if layer == 0 else 1.0
    arrays["critics.layers.0.bias"][:, 0] = 40.0
    choosy = act(export._replace(arrays=arrays), np.repeat(OBSERVATIONS[:1], 100, 0))
    assert choosy[:, 0].mean() > indifferent[:, 0].mean() + 0.3
    assert np.abs(choosy).max() <= 1


def test_diffusion_draws_follow_the_seed(diffusion_state: Any) -> None:
    export = DIFFUSION.policy(diffusion_state)
    np.testing.assert_array_equal(act(export, seed=3), act(export, seed=3))
    assert not np.array_equal(act(export, seed=3), act(export, seed=4))
