"""Each algorithm learns: on a task small enough for a short run, its policy beats the data it learned from.

The task is to push a point in the plane to the origin: s' = s + 0.3·a with actions in ±1, reward −|s'|, 10 steps per
episode. The data is logged by a policy that often pushes in the wrong direction.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import act

from aspc import algorithms
from aspc.algorithms.fields import with_horizon
from aspc.algorithms.interface import Batch, Spec, schedule_length
from registries import number_names

SPEC = Spec(obs_dim=2, act_dim=2)
EPISODE = 10
STEPS = 2_000
# Faster than the defaults, which suit a million steps; CQL's default penalty suits returns in the hundreds.
QUICK = {"batch_size": 64, "discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-3, "value_lr": 1e-3, "lr": 1e-3}
QUICK |= {"cql_alpha": 1.0, "n_actions": 4, "diffusion_steps": 4, "flow_steps": 5, "ema_start": 0, "tau": 0.02}


def rollout(act: Any, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states [steps + 1, episodes, 2] and actions [steps, episodes, 2]."""
    rng = np.random.default_rng(seed)
    states, actions = [rng.uniform(-1.5, 1.5, (episodes, 2)).astype(np.float32)], []
    for _ in range(EPISODE):
        actions.append(np.asarray(act(states[-1], rng), np.float32))
        states.append(states[-1] + np.float32(0.3) * actions[-1])
    return np.stack(states), np.stack(actions)


def mean_return(states: np.ndarray) -> float:
    return float(-np.linalg.norm(states[1:], axis=-1).sum(0).mean())


def clumsy(states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    skill = rng.uniform(-0.6, 1.0, (len(states), 1))
    return np.clip(-skill * states + 0.5 * rng.standard_normal(states.shape), -1, 1)


@pytest.fixture(scope="module")
def logged() -> tuple[Batch, float]:
    """Transitions of 500 episodes, and their mean return."""
    states, actions = rollout(clumsy, 500, seed=0)
    rows = lambda x: jnp.asarray(x.reshape(-1, 2))  # noqa: E731
    rewards = -np.linalg.norm(states[1:], axis=-1).reshape(-1)
    next_actions = np.concatenate([actions[1:], actions[-1:]])
    batch = Batch(
        rows(states[:-1]),
        rows(actions),
        jnp.asarray(rewards),
        rows(states[1:]),
        jnp.ones(len(rewards)),
        rows(next_actions),
    )
    return batch, mean_return(states)


def quick(algorithm: Any) -> Any:
    if algorithm.base is not None:
        return replace(algorithm, base=quick(algorithm.base))
    names = {field.name for field in fields(algorithm)}
    narrow = {name: 32 for name in names if name.endswith("hidden_dim")}
    shallow = {name: 2 for name in names if name.endswith("hidden_layers")}
    return replace(algorithm, **narrow, **shallow, **{name: v for name, v in QUICK.items() if name in names})


def train(algorithm: Any, data: Batch, steps: int) -> tuple[Any, Any, Any]:
    """Return the states before and after, and the scale (if there is one) after each cycle of the schedule."""
    draws = algorithm.noise(SPEC, algorithm.batch_size)

    def step(parts: Any, state: Any, key: Any) -> Any:
        key_rows, *keys = jax.random.split(key, 1 + len(draws))
        rows = jax.random.randint(key_rows, (algorithm.batch_size,), 0, len(data.rewards))
        noise = {name: draw.sample(k, 1)[0] for k, (name, draw) in zip(keys, draws.items(), strict=True)}
        return algorithm.update(state, jax.tree.map(lambda x: x[rows], data), noise, parts)[0]

    def one_cycle(state: Any, key: Any) -> Any:
        for segment in algorithm.schedule():
            key, key_segment = jax.random.split(key)

            def repeat(state: Any, key: Any, segment: Any = segment) -> Any:
                for parts, k in zip(segment.steps, jax.random.split(key, len(segment.steps)), strict=True):
                    state = step(parts, state, k)
                return state, None

            state, _ = jax.lax.scan(repeat, state, jax.random.split(key_segment, segment.repeats))
        return state, state.scale.scale if hasattr(state, "scale") else None

    cycles = steps // schedule_length(algorithm.schedule())
    start = jax.jit(lambda key: algorithm.init(key, SPEC))(jax.random.key(0))
    end, scales = jax.jit(lambda s: jax.lax.scan(one_cycle, s, jax.random.split(jax.random.key(1), cycles)))(start)
    return start, end, scales


def untouched(before: Any, after: Any) -> list[str]:
    """Return the names of the arrays that did not change."""
    same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), before, after)
    return [jax.tree_util.keystr(path) for path, equal in jax.tree_util.tree_leaves_with_path(same) if equal]


@pytest.mark.parametrize("name", number_names())
def test_learns(name: str, logged: tuple[Batch, float]) -> None:
    data, behavior = logged
    algorithm = with_horizon(quick(algorithms.default(name)), STEPS)
    start, state, scales = train(algorithm, data, STEPS)
    export = algorithm.policy(state)
    arrays = {key: np.asarray(array) for key, array in export.arrays.items()}
    states, _ = rollout(lambda s, rng: act(export.kind, arrays, export.settings, s, rng), 200, seed=1)
    random, _ = rollout(lambda s, rng: rng.uniform(-1, 1, s.shape), 200, seed=1)
    score, by_chance = mean_return(states), mean_return(random)
    assert score > by_chance + 1
    if name in ("bc", "discrete_bc"):  # it imitates the mean action: without noise, but not better than the data
        assert score < behavior + 1.5
    else:
        assert score > behavior + 1
    # Only CQL's α' can be constant: it is trained only with `lagrange`.
    base = (lambda s: s) if scales is None else (lambda s: s.base)
    assert not [name for name in untouched(base(start), base(state)) if "log_alpha_prime" not in name]
    if scales is not None:
        assert np.all(np.isfinite(scales))
        assert np.all(scales > 0)
        assert np.ptp(scales) > 1e-4 * float(scales[0])
