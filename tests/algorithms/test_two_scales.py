"""Algorithms with one policy for bootstrapping and one for acting: the second affects only the actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from aspc import algorithms
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.interface import CRITIC, INNER, SCALE, Batch, Spec
from aspc.algorithms.mcep import MCEP
from aspc.algorithms.td3_bc import TD3BC
from aspc.algorithms.two_scales import AveragedPolicy, TwoScales

SMALL = {"actor_hidden_dim": 8, "critic_hidden_dim": 8, "batch_size": 8, "critic_hidden_layers": 1}
LEARNED = ("actor", "actor_target", "critics", "critics_target")


def trained(make: Callable[[Any], Any], number: float | None = None) -> list:
    """Return the states of four steps on random data; `number` is a traced hyperparameter, so all share a program."""
    rng = np.random.default_rng(0)
    parts = frozenset({CRITIC, INNER, SCALE})
    algorithm = make(number)

    @jax.jit
    def update(state, batch, noise, number):
        return make(number).update(state, batch, noise, parts)[0]

    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    states = [jax.jit(lambda key: algorithm.init(key, Spec(4, 2)))(jax.random.key(0))]
    for _ in range(4):
        batch = Batch(draw(8, 4), np.tanh(draw(8, 2)), draw(8), draw(8, 4), np.ones(8, np.float32))
        states.append(update(states[-1], batch, {"target_policy": draw(8, 2)}, number))
    return states


def test_acting_policy_affects_only_the_actions() -> None:
    base = TwoScales(**SMALL, acting_tau=1.0)
    algorithm = AdaptiveScale(base=base, k_alpha=1)
    with_ratio = lambda ratio: replace(algorithm, base=replace(base, acting_ratio=ratio))  # noqa: E731
    same, bolder = trained(with_ratio, 1.0)[-1], trained(with_ratio, 4.0)[-1]
    assert equal(same.base.actor, same.base.acting)  # with a ratio of 1 it is ASPC
    assert not equal(bolder.base.actor, bolder.base.acting)
    for name in LEARNED:
        assert equal(getattr(same.base, name), getattr(bolder.base, name))
    assert same.scale.scale == bolder.scale.scale != algorithm.base.scale
    acts_with = replace(bolder, base=replace(bolder.base, actor=bolder.base.acting))
    assert equal(algorithm.policy(bolder).arrays, TD3BC.policy(base, acts_with.base).arrays)


def test_mcep_evaluation_policy_affects_only_the_actions() -> None:
    mcep = lambda alpha: MCEP(**SMALL, evaluation_alpha=alpha)  # noqa: E731
    same, milder = trained(mcep, 2.5)[-1], trained(mcep, 10.0)[-1]
    for name in LEARNED:
        assert equal(getattr(same, name), getattr(milder, name))
    assert not equal(milder.actor, milder.second)
    assert equal(mcep(0.0).policy(milder).arrays, TD3BC.policy(mcep(0.0), replace(milder, actor=milder.second)).arrays)


def test_mcep_with_equal_scales_acts_as_td3_bc() -> None:
    mcep, td3_bc = MCEP(**SMALL, evaluation_alpha=2.5), TD3BC(**SMALL)
    state, plain = trained(lambda _: mcep)[-1], trained(lambda _: td3_bc)[-1]
    assert equal(mcep.policy(state).arrays, td3_bc.policy(plain).arrays)


def test_mcep_has_the_scales_of_its_paper() -> None:
    algorithm = algorithms.default("mcep")
    assert (algorithm.alpha, algorithm.evaluation_alpha) == (2.5, 10.0)


@pytest.mark.parametrize("tau", [1e-4, 0.95])
def test_averaged_policy_is_the_average_of_the_policies_of_aspc(tau: float) -> None:
    """With the first τ the early rate applies to all four steps; with the second, τ applies to all but the first."""
    averaged = AdaptiveScale(base=AveragedPolicy(**SMALL, acting_tau=tau), k_alpha=1)
    states, plain = trained(lambda _: averaged), trained(lambda _: AdaptiveScale(base=TD3BC(**SMALL), k_alpha=1))
    for name in LEARNED:
        assert equal(getattr(states[-1].base, name), getattr(plain[-1].base, name))
    by_hand = average((s.base.actor for s in plain), tau)
    for a, b in zip(by_hand, jax.tree.leaves(states[-1].base.acting), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    acts_with = replace(plain[-1], base=replace(plain[-1].base, actor=states[-1].base.acting))
    assert equal(averaged.policy(states[-1]).arrays, TD3BC.policy(averaged.base, acts_with.base).arrays)


def average(policies, tau: float) -> list:
    """Return the expected average: over the last tenth of the steps so far while that is fewer than 1/τ."""
    first, *others = map(jax.tree.leaves, policies)
    for step, leaves in enumerate(others, start=1):
        rate = max(tau, 10 / (step + 9))
        first = [(1 - rate) * mean + rate * leaf for mean, leaf in zip(first, leaves, strict=True)]
    return first


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_aspc_plus_has_the_settings_of_the_study() -> None:
    """ASPC+ is two scales with ratio 2, an averaged acting policy and an independent outer batch, as in the study."""
    algorithm = algorithms.default("aspc_plus")
    assert algorithm == AdaptiveScale(base=TwoScales(acting_ratio=2.0, acting_tau=1e-4), outer_batch="independent")


def test_controls_are_aspc_plus_without_one_component() -> None:
    plus = algorithms.default("aspc_plus")
    assert algorithms.default("td3_bc_two_policies") == plus.base
    averaged = algorithms.default("aspc_averaged")
    assert averaged == AdaptiveScale(base=AveragedPolicy(acting_tau=plus.base.acting_tau))
