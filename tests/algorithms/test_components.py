"""Networks and optimizers of the user, by object and by name."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import aspc
import registries
from aspc import algorithms
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.iql import IQL
from aspc.algorithms.td3_bc import TD3BC
from aspc.assessment import FQEOptions, choose_states, fitted_q_evaluation
from aspc.authoring import CRITIC, INNER, SCALE, Batch, Spec, init_apply, mlp, register_network, register_optimizer
from aspc.errors import AspcError
from aspc.optim import Adam, Optimizer, step_count
from aspc.training.compiled_loop import Loop
from tiny import make_dataset

OPTIONS: dict[str, Any] = {"steps": 20, "env": None, "quiet": True, "tensorboard": False}
SPEC = Spec(4, 2)


@pytest.fixture(autouse=True)
def _restored() -> Any:
    with registries.restored():
        yield


def make_mlp(key: Any, in_size: int, out_size: int) -> eqx.nn.MLP:
    """One input at a time, with an activation among its leaves."""
    return eqx.nn.MLP(in_size, out_size, 8, 1, jax.nn.gelu, key=key)


class Rows(eqx.Module):
    """Rows of inputs, with a constant and a choice in Python."""

    weight: Any
    offset: np.ndarray
    is_positive: bool

    def __init__(self, key: Any, in_size: int, out_size: int) -> None:
        self.weight = 0.3 * jax.random.normal(key, (in_size, out_size))
        self.offset = np.linspace(-1, 1, out_size).astype(np.float32)
        self.is_positive = True

    def __call__(self, x: Any) -> Any:
        sign = 1 if self.is_positive else -1
        return sign * jnp.sin(x @ self.weight) + self.offset


def init_linear(key: Any, in_size: int, out_size: int) -> Any:
    return {"w": 0.3 * jax.random.normal(key, (in_size, out_size)), "b": jnp.zeros(out_size)}


def apply_linear(params: Any, x: Any) -> Any:
    return x @ params["w"] + params["b"]


def programs() -> int:
    return Loop.run_blocks._cache_size() + Loop.run_steps._cache_size()


# The largest families; the others inherit their networks from TD3+BC.
@pytest.mark.parametrize("name", ["bc", "aspc", "iql", "rebrac", "cql", "fql", "diffusion_ql", "rapo"])
def test_every_algorithm_takes_networks(name: str, tmp_path: Path) -> None:
    networks = {"actor": make_mlp} | ({} if name == "bc" else {"critic": Rows})
    small = {"batch_size": 8} if name != "rapo" else {"base.batch_size": 4}
    before = programs()
    out = tmp_path / "run"
    run = aspc.train(make_dataset(100), algo=name, seeds=[0, 1], out=out, **OPTIONS, **small, **networks)
    assert programs() - before <= 2
    hyperparameters = run.config.hyperparameters
    assert (hyperparameters.get("base") or hyperparameters)["actor"] == "make_mlp"
    policies = [aspc.load_policy(out, seed) for seed in (0, 1)]
    assert {policy.kind for policy in policies} == {"program"}
    assert all(np.isfinite(policy.act(np.zeros((3, 4)))).all() for policy in policies)
    assert not np.array_equal(*(policy.act(np.zeros(4)) for policy in policies))


@pytest.mark.parametrize("make", [make_mlp, Rows, init_apply(init_linear, apply_linear)])
def test_a_network_sees_any_number_of_leading_axes(make: Any) -> None:
    state = TD3BC(actor=make, critic=make).init(jax.random.key(0), SPEC)
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 4)), jnp.float32)
    actions = state.actor(rows)
    assert actions.shape == (5, 3, 2)
    np.testing.assert_allclose(actions[2, 1], state.actor(rows[2, 1]), rtol=1e-5)
    q = state.critics(rows, actions)
    assert q.shape == (2, 5, 3)
    np.testing.assert_allclose(state.critics[1](rows, actions), q[1], rtol=1e-5)


def test_a_custom_mlp_trains_as_the_default_one(tmp_path: Path) -> None:
    """The same network by a factory: the same keys, batches and steps, and the policy of the built-in kind."""

    def default_actor(key: Any, in_size: int, out_size: int) -> Any:
        return mlp(key, in_size, [256, 256], out_size)

    data = make_dataset(100)
    one = aspc.train(data, algo="td3_bc", out=tmp_path / "one", batch_size=8, actor=default_actor, **OPTIONS)
    other = aspc.train(data, algo="td3_bc", out=tmp_path / "other", batch_size=8, **OPTIONS)
    assert one.policy.kind == "deterministic"
    for name, array in other.policy.arrays.items():
        np.testing.assert_array_equal(one.policy.arrays[name], array)


def test_a_run_with_a_network_resumes_to_the_same_bits(tmp_path: Path) -> None:
    data, settings = make_dataset(100), {"batch_size": 8, "actor": Rows, "critic_optimizer": optax.adamw}
    options = {**OPTIONS, "checkpoint_every": 20, "log_every": 20, "eval_every": 20}
    whole = aspc.train(data, algo="aspc", out=tmp_path / "whole", **settings, **options | {"steps": 40})
    aspc.train(data, algo="aspc", out=tmp_path / "half", **settings, **options, horizon=40)
    resumed = aspc.train(data, resume=tmp_path / "half", steps=40, quiet=True)
    for name, array in whole.policy.arrays.items():
        np.testing.assert_array_equal(resumed.policy.arrays[name], array)


def test_a_resumed_run_needs_its_network(tmp_path: Path) -> None:
    data = make_dataset(100)
    with registries.restored():
        aspc.train(data, algo="bc", out=tmp_path / "run", actor=Rows, batch_size=8, **OPTIONS)
    with pytest.raises(AspcError, match=r"Unknown network 'Rows'.*@register_network .*--plugin"):
        aspc.train(data, resume=tmp_path / "run", steps=30, quiet=True)
    algorithm = algorithms.default("bc")
    again = aspc.train(
        data, resume=tmp_path / "run", algo=type(algorithm)(actor=Rows, batch_size=8), steps=30, quiet=True
    )
    assert again.result is not None
    assert again.result["steps"] == 30


def test_a_network_is_ranked_and_fine_tuned(tmp_path: Path) -> None:
    data = aspc.data.load("maze2d-umaze?steps=500")
    run = aspc.train(data, algo="td3_bc", actor=Rows, batch_size=8, out=tmp_path / "run", **OPTIONS)
    options = FQEOptions(steps=20, batch_size=8, hidden_dim=8, hidden_layers=1)
    ranking = fitted_q_evaluation({"mine": run.policy}, data, choose_states(data, "start"), options)
    assert [estimate.name for estimate in ranking.policies] == ["mine"]
    assert np.isfinite(ranking.policies[0].value)
    online = {"steps": 20, "collect": 20, "eval_every": 20, "eval_episodes": 1, "quiet": True}
    tuned = aspc.finetune(run, "maze2d-umaze", dataset=data, out=tmp_path / "tuned", **online)
    assert tuned.policy.kind == "program"
    (name,) = run.policy.arrays
    assert not np.array_equal(run.policy.arrays[name], tuned.policy.arrays[name])


def three_outputs(key: Any, in_size: int, out_size: int) -> Any:
    return eqx.nn.Linear(in_size, 3, key=key)


def failing(key: Any, in_size: int, out_size: int) -> Any:
    raise ValueError("no such layer")


class Integers(eqx.Module):
    index: Any

    def __init__(self, key: Any, in_size: int, out_size: int) -> None:
        self.index = jnp.arange(out_size)

    def __call__(self, x: Any) -> Any:
        return x[self.index]


def new_lambda(key: Any, in_size: int, out_size: int) -> Any:
    return eqx.nn.MLP(in_size, out_size, 8, 1, lambda x: jnp.tanh(x), key=key)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"actor": three_outputs}, r"three_outputs must map \[4\] to \[2\].*its output has shape \[3\]"),
        (
            {"critic": failing},
            r"The network failing failed: ValueError: no such layer. It is called with a key, the input size 6",
        ),
        ({"actor": Integers}, "Integers has a JAX array of integers"),
        ({"actor": new_lambda}, "a different structure each time .* lambda"),
        ({"actor": lambda key, n, m: make_mlp(key, n, m)}, "records its network by name, but .* has no name"),
        ({"actor": "residul"}, "Unknown network 'residul'"),
        ({"critic_optimizer": "adamx"}, "Unknown optimizer 'adamx'; did you mean .*adamw"),
        ({"critic_optimizer": partial(optax.sgd, momentum=0.9)}, "records its optimizer by name"),
    ],
)
def test_mistakes_are_explained_before_the_first_step(settings: Any, problem: str, tmp_path: Path) -> None:
    register_network("residual")(make_mlp)
    with pytest.raises(AspcError, match=problem):
        aspc.train(make_dataset(100), algo="td3_bc", out=tmp_path / "run", **OPTIONS, batch_size=8, **settings)
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_a_name_has_one_factory() -> None:
    register_network("mine")(make_mlp)
    register_network("mine")(make_mlp)
    with pytest.raises(AspcError, match="network 'mine' is already registered"):
        register_network("mine")(Rows)
    with pytest.raises(AspcError, match="optimizer 'sgd' is already registered"):
        register_optimizer("sgd")(optax.lion)


# ---------------------------------------------------------------------------------------------------------------
# Optimizers
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "adamw", "lion", "rmsprop", "sgd"])
def test_optimizers_take_the_steps_of_optax(name: str) -> None:
    params, grads = jnp.array([0.5, -0.3, 0.2]), jnp.array([1.0, -2.0, 0.5])
    algorithm = TD3BC(actor_optimizer=name)
    optimizer, reference = algorithm.inner_optimizer(), getattr(optax, name)(3e-4)
    state, expected, expected_state = optimizer.init(params), params, reference.init(params)
    for i in range(3):
        params, state = optimizer.step(params, (i + 1) * grads, state)
        updates, expected_state = reference.update((i + 1) * grads, expected_state, expected)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(params, expected, rtol=1e-6)
    assert step_count(state) == 3


def test_adam_by_name_is_the_default() -> None:
    params, grads = jnp.array([0.5, -0.3]), jnp.array([1.0, 0.0])
    named, default = TD3BC(actor_optimizer="adam").inner_optimizer(), Adam(3e-4)
    np.testing.assert_array_equal(
        named.step(params, grads, named.init(params))[0], default.step(params, grads, default.init(params))[0]
    )


def without_root(learning_rate: Any) -> Any:
    return optax.adamw(learning_rate, eps_root=0.0)


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        ("lion", "does not change with small changes in the gradient.*Adam"),
        (without_root, "A step of without_root has no finite derivative where a gradient is zero"),
        (optax.lbfgs, "The optimizer of the inner step failed"),
    ],
)
def test_the_inner_optimizer_of_a_learned_scale_is_differentiable(optimizer: Any, problem: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(AspcError, match=problem):
        aspc.train(make_dataset(100), algo="aspc", actor_optimizer=optimizer, out=out, **OPTIONS)
    assert not out.exists()
    aspc.train(make_dataset(100), algo="td3_bc", actor_optimizer="lion", batch_size=8, out=out, **OPTIONS)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_the_derivative_of_the_scale_through_an_optimizer(optimizer: str) -> None:
    """One step on raw by SGD is its learning rate times the derivative, here compared with a finite difference."""
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = TD3BC(actor_optimizer=optimizer, actor_lr=1e-2, actor_hidden_dim=8, critic_hidden_dim=8)
        aspc_ = AdaptiveScale(base=base, scale_optimizer="sgd", outer_loss="L1", k_alpha=1, scale_lr=1e-3)
        rng = np.random.default_rng(0)
        s, a, s2 = (jnp.asarray(rng.normal(size=(32, n))) for n in (4, 2, 4))
        batch = Batch(s, jnp.tanh(a), jnp.asarray(rng.normal(size=32)), s2, jnp.ones(32))
        noise = {"target_policy": jnp.zeros((32, 2))}
        state = jax.jit(lambda key: aspc_.init(key, SPEC))(jax.random.key(0))
        state = jax.tree.map(lambda x: x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x, state)
        update = jax.jit(aspc_.update, static_argnums=3)
        for _ in range(3):
            state, _ = update(state, batch, noise, frozenset({CRITIC, INNER}))
        moved, metrics = update(state, batch, noise, frozenset({INNER, SCALE}))

        alpha, eps = float(state.scale.scale), 1e-5

        @jax.jit
        def terms(scale: float) -> Any:
            ctx = base.prepare(state.base, batch, noise, frozenset({INNER}))
            return base.outer_terms(ctx, base.inner_step(ctx, scale).params, alpha)

        # The normalizer is held fixed in the derivative, so the difference uses the one of the middle.
        size = float(jnp.abs(terms(alpha).q).mean())

        def fixed(scale: float) -> float:
            after = terms(scale)
            return float(-alpha * after.q.mean() / size + after.constraint.mean())

        expected = (fixed(alpha + eps) - fixed(alpha - eps)) / (2 * eps)
        assert abs(expected) > 1e-12
        np.testing.assert_allclose(float(metrics["dl1_dscale"]), expected, rtol=1e-4)
        slope = expected * float(jax.nn.sigmoid(state.scale.raw))
        rate = 1e-3 / 10
        np.testing.assert_allclose(float(moved.scale.raw - state.scale.raw), -rate * slope, rtol=1e-3)


def test_a_schedule_reaches_a_custom_optimizer() -> None:
    """IQL's learning rate decays by a cosine over the horizon, whatever the optimizer."""
    optimizer = IQL(actor_optimizer="sgd", actor_lr=1.0, lr_horizon=2).inner_optimizer()
    params, state = jnp.zeros(1), optimizer.init(jnp.zeros(1))
    for expected in (-1.0, -1.5, -1.5):
        params, state = optimizer.step(params, jnp.ones(1), state)
        np.testing.assert_allclose(params, expected, atol=1e-6)


def test_gradients_are_clipped_before_a_custom_optimizer() -> None:
    optimizer = Optimizer(1.0, 1.0, optax.sgd)
    params, _ = optimizer.step(jnp.zeros(2), jnp.array([3.0, 4.0]), optimizer.init(jnp.zeros(2)))
    np.testing.assert_allclose(params, [-0.6, -0.8], rtol=1e-5)


def test_the_average_of_aspc_plus_counts_the_steps_of_any_optimizer(tmp_path: Path) -> None:
    run = aspc.train(
        make_dataset(100),
        algo="aspc_plus",
        actor_optimizer="sgd",
        out=tmp_path / "run",
        **OPTIONS,
        **{"base.batch_size": 4},
    )
    assert run.policy.kind == "deterministic"
