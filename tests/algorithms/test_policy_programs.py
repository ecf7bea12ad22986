"""Policies as programs: JAX functions traced, then computed by NumPy, JAX and ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

import aspc
import registries
from aspc import plugins
from aspc.algorithms.policy_tracing import traced_policy
from aspc.errors import AspcError
from aspc.export import load_stablehlo, render_files
from aspc.policy import Policy
from aspc.policy_kinds import KINDS, NoiseInput, sample_noise
from tiny import make_dataset

RNG = np.random.default_rng(0)
S = RNG.standard_normal((7, 4), np.float32)
W = {"a": RNG.standard_normal((4, 4), np.float32), "b": RNG.standard_normal((3, 4), np.float32)}
PROGRAM = KINDS["program"]

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "products": lambda w, s: s @ w["a"] @ w["b"].T @ w["b"],
    "matrix times vector": lambda w, s: jax.vmap(lambda row: w["a"] @ row)(s),
    "batched product": lambda w, s: jnp.einsum("bi,kij->bkj", s, jnp.stack([w["a"], w["a"].T])).max(1),
    "activations": lambda w, s: sum(
        f(s)
        for f in (
            *(jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.elu, jax.nn.mish, jax.nn.leaky_relu, jax.nn.softplus),
            *(jax.nn.sigmoid, jax.nn.selu, jax.nn.celu, jax.nn.hard_tanh, jax.nn.log_sigmoid, jax.nn.relu6),
        )
    ),
    "gelu without approximation": lambda w, s: jax.nn.gelu(s, approximate=False) + jax.scipy.special.erf(s),
    "elementary functions": lambda w, s: jnp.sin(s) + jnp.cos(s) * jnp.exp(s) - jnp.log1p(jnp.abs(s)) / jnp.sqrt(s**2 + 1),  # noqa: E501
    "powers": lambda w, s: s**3 - 1 / (2 + s**2) + jnp.abs(s) ** 0.5 + jax.lax.rsqrt(1 + s * s) + jnp.exp2(s) + jnp.expm1(s),  # noqa: E501
    "rounding and signs": lambda w, s: jnp.floor(s) + jnp.sign(s) - s,
    "norm": lambda w, s: (s - s.mean(-1, keepdims=True)) / jnp.sqrt(s.var(-1, keepdims=True) + 1e-5),
    "softmax": lambda w, s: jax.nn.softmax(s @ w["a"]),
    "comparisons": lambda w, s: jnp.where((s > 0) & ~(s >= 1) | (s < -1), s, jnp.where(s <= 0.5, -s, 0.0)),
    "row conditions": lambda w, s: jnp.where(s[:, :1] != s[:, 1:2], s, 0) + jnp.where((s[:, 0] > 0)[:, None], s, -s),
    "indices": lambda w, s: jnp.stack([s[:, 0], s[:, -1], s[:, 2], s[:, 1]], -1) + jnp.concatenate([s[:, 1:], s[:, :1]], -1),  # noqa: E501
    "parts": lambda w, s: jnp.concatenate(jnp.split(s, 2, -1)[::-1], -1) + jnp.tile(s[:, :2], (1, 2)) + s.reshape(-1, 2, 2).sum(1).repeat(1, -1)[:, :1],  # noqa: E501
    "extremes": lambda w, s: s.max(-1, keepdims=True) + s.min(-1, keepdims=True) + jnp.clip(s, -0.5, 0.5),
    "best of several": lambda w, s: (jax.nn.one_hot(jnp.argmax(s @ w["a"], 1), 4) * s),
    "scan": lambda w, s: jax.lax.scan(lambda c, t: (c + 0.1 * jnp.tanh(c @ w["a"] + t), c.sum(-1)), s, jnp.arange(3.0))[0],  # noqa: E501
    "fori_loop": lambda w, s: jax.lax.fori_loop(0, 3, lambda i, x: 0.5 * x @ w["a"], s),
    "constants": lambda w, s: s + jnp.arange(4.0) * jnp.linspace(0, 1, 4) + jnp.full((s.shape[0], 4), 0.3) + np.ones((400, 4))[:1].astype(np.float32),  # noqa: E501
    "rows of the batch": lambda w, s: s @ s.T @ s,
    "several axes": lambda w, s: (s[:, None] + jnp.asarray(w["b"])[None]).transpose(1, 0, 2).sum(0),
    "ensemble": lambda w, s: jax.vmap(lambda m: s @ m)(jnp.stack([w["a"], 2 * w["a"]])).min(0),
}  # fmt: skip


def policy_of(function: Callable[..., Any], noise: dict[str, NoiseInput] | None = None) -> Policy:
    """Return a policy with four actions that lie in ±100, as it is after saving."""
    export = traced_policy(function, W, 4, noise)
    arrays = {name: np.asarray(array, np.float32) for name, array in export.arrays.items()}
    bounds = np.full(4, 100, np.float32)
    settings = json.loads(json.dumps(export.settings))
    return Policy(export.kind, arrays, settings, np.zeros(4, np.float32), np.ones(4, np.float32), -bounds, bounds)


def unit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Scale a function so that it is an action in ±1."""
    return lambda w, *inputs: jnp.tanh(0.1 * function(w, *inputs))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_traced_functions_are_the_same_in_numpy_jax_and_onnx(name: str) -> None:
    function = unit(FUNCTIONS[name])
    policy, expected = policy_of(function), np.asarray(function(W, S))
    assert PROGRAM.is_valid(policy.arrays, policy.settings, 4, 4)
    np.testing.assert_allclose(PROGRAM.act(policy.arrays, policy.settings, S), expected, atol=2e-6)
    assert PROGRAM.act(policy.arrays, policy.settings, S).dtype == np.float32
    in_jax = jax.jit(lambda s: PROGRAM.act(policy.arrays, policy.settings, s))(S)
    np.testing.assert_allclose(in_jax, expected, atol=2e-6)
    session = onnxruntime.InferenceSession(render_files(policy, "onnx")[""])
    (actions,) = session.run(None, {"observations": S})
    np.testing.assert_allclose(actions, 100 * expected, atol=2e-4)


def test_noise_and_every_export(tmp_path: Path) -> None:
    def act(w: Any, s: Any, z: Any) -> Any:
        return jnp.tanh(jax.vmap(lambda zi: (s + zi) @ w["a"], 1, 1)(z).max(1))

    policy = policy_of(act, {"z": NoiseInput("normal", (None, 5, 4))})
    policy.save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")
    actions = policy.act(S, rng=3)
    (z,) = sample_noise(policy.noise(), 7, 3)
    np.testing.assert_allclose(actions, 100 * np.asarray(act(W, S, z)), atol=1e-3)
    assert len({row.tobytes() for row in policy.act(np.repeat(S[:1], 5, 0))}) == 5
    (tmp_path / "p").write_bytes(render_files(policy, "stablehlo")[""])
    np.testing.assert_allclose(load_stablehlo(tmp_path / "p")(S, rng=3), actions, atol=1e-3)
    session = onnxruntime.InferenceSession(render_files(policy, "onnx")[""])
    np.testing.assert_allclose(session.run(None, {"observations": S, "z": z})[0], actions, atol=1e-3)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda w, s: jnp.cumsum(s, -1), "JAX primitive cumsum"),
        (lambda w, s: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, s), "JAX primitive while"),
        (lambda w, s: s[:, ::2], "indexes an array with an array"),
        (lambda w, s: (s @ s.T)[:, :, None].transpose(1, 2, 0), "two batch axes"),
        (lambda w, s: s + jnp.zeros((len(s), 4)), r"failed for a batch of unknown size .*x\.shape\[0\]"),
        (lambda w, s: s * np.nan, "contains a NaN constant"),
        (lambda w, s: s[:, jnp.argmax(w["a"][0])][:, None], "computed index|indexes an array"),
    ],
)
def test_functions_that_a_program_cannot_compute(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(AspcError, match=problem):
        traced_policy(function, W, 4)


GOOD: list[Any] = ["matmul", 1, ["#0", "w"], {}]


@pytest.mark.parametrize(
    "steps",
    [
        [["import", 1, ["#0"], {}]],
        [["matmul", 1, ["#0", "missing"], {}]],
        [["matmul", 1, ["#7", "w"], {}]],
        [GOOD, ["broadcast", 2, [0.0], {"shape": [10**9, 10**9]}]],
        [GOOD, *[["concatenate", 1, ["#1", "#1"], {"axis": 0}]] * 40],
        [GOOD, *[["reshape", 1, ["#1"], {"shape": [-1, 1]}], ["matmul", 1, ["#1", [[1.0] * 4096]], {}]] * 3],
        [["add", 1, ["#0", 0.0], {"out": "x"}]],
        [GOOD] * 20_001,
        [["equal", 1, ["#0", 0.0], {}]],
        [["reshape", 1, [0.5], {"shape": [1, 4]}]],
        [{"operation": "add"}],
        [*[["broadcast", 2, [[0.0]], {"shape": [1000, 1000]}]] * 201, GOOD],
    ],
)
def test_hostile_programs_are_refused_when_they_are_loaded(steps: Any, tmp_path: Path) -> None:
    def policy(steps: Any) -> Policy:
        arrays, ones = {"w": np.eye(4, dtype=np.float32)}, np.ones(4, np.float32)
        return Policy("program", arrays, {"steps": steps, "noise": {}}, 0 * ones, ones, -ones, ones)

    policy([GOOD]).save(tmp_path / "good")
    np.testing.assert_allclose(Policy.load(tmp_path / "good").act(S[0] / 9), S[0] / 9, rtol=1e-6)
    policy(steps).save(tmp_path / "bad")
    with pytest.raises(AspcError, match="is damaged"):
        Policy.load(tmp_path / "bad")


KIND_PLUGIN = """
from dataclasses import dataclass

import jax.numpy as jnp

from aspc import authoring as rl
from aspc.algorithms.bc import BC


def {name}_noise(arrays, settings, observation_size):
    return {{"z": rl.NoiseInput("normal", (None, 2))}}


@rl.register_policy_kind("{name}", noise={name}_noise)
def {name}(arrays, settings, observations, z):
    {body}


@rl.register("{name}_bc")
@dataclass(frozen=True)
class NoisyBC(BC):
    def policy(self, state):
        export = super().policy(state)
        return rl.PolicyExport("{name}", export.arrays, {{"width": 0.25}})
"""
BODIES = {
    "with_jax": "return jnp.tanh(observations @ arrays['layers.0.weight'][:, :2] + settings['width'] * z)",
    "with_arrays": "return observations.__array_namespace__().tanh("
    "observations @ arrays['layers.0.weight'][:, :2] + settings['width'] * z)",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_kind_of_a_plugin_is_evaluated_and_loaded_without_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(KIND_PLUGIN.format(name=name, body=BODIES[name]))
    with registries.restored():
        plugins.load_plugin(tmp_path / "plugin.py")
        run = aspc.train(
            "maze2d-umaze?steps=500",
            algo=f"{name}_bc",
            out=tmp_path / "run",
            steps=20,
            batch_size=8,
            eval_every=20,
            eval_episodes=1,
            quiet=True,
            tensorboard=False,
        )
        assert list(run.evaluations["episodes"]) == [1]
    policy = aspc.load_policy(tmp_path / "run")
    (z,) = sample_noise(policy.noise(), 3, 0)
    rows = RNG.standard_normal((3, 4), np.float32)
    (weight,) = (array for array in policy.arrays.values() if array.ndim == 2)
    normalized = (rows - policy.observation_mean) / policy.observation_std
    np.testing.assert_allclose(policy.act(rows, rng=0), np.tanh(normalized @ weight[:, :2] + 0.25 * z), atol=1e-5)


def test_kinds_have_one_name_each() -> None:
    from aspc.authoring import register_policy_kind

    with registries.restored(), pytest.raises(AspcError, match="'flow' already exists"):
        register_policy_kind("flow")(lambda arrays, settings, s: s)


def test_an_unknown_kind_names_the_registered_ones(tmp_path: Path) -> None:
    from aspc.algorithms.bc import BC
    from aspc.authoring import PolicyExport, register_policy_kind

    class Misspelled(BC):
        def policy(self, state: Any) -> PolicyExport:
            return super().policy(state)._replace(kind="mixtur")

    with registries.restored():
        register_policy_kind("mixture")(lambda arrays, settings, s: s)
        with pytest.raises(AspcError, match="did you mean mixture"):
            aspc.train(make_dataset(100), algo=Misspelled(), steps=1, env=None, quiet=True, out=tmp_path / "run")
