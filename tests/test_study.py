"""The study: what its suites are made of, and the candidate that is a file of its own."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import registries
from aspc.algorithms.base import CRITIC, Batch, Spec, with_horizon
from aspc.algorithms.rebrac import ReBRAC
from aspc.algorithms.td3_bc import TD3BC
from aspc.experiments import suites
from aspc.experiments.groups import make_groups
from aspc.experiments.plan import RunSpec, make_plan
from aspc.plugins import load_plugin
from aspc.presets.paper_tables import domain_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILES = {name: Path(f"{name}.hdf5") for name in suites.STUDIED}


def test_a_sitting_that_ends_between_groups_leaves_whole_comparisons() -> None:
    plan = make_plan(suites.expanded(["study_a"]), data=FILES)
    groups = make_groups(plan, plan.runs, 64, FILES)
    assert len(plan.runs) == 168
    compared = [({m.run.dataset for m in group.members}, group.members[0].variant) for group in groups]
    assert [variant for _, variant in compared] == ["ASPC", "TD3+BC"] * 3
    assert [datasets for datasets, _ in compared[::2]] == [datasets for datasets, _ in compared[1::2]]


def test_the_halves_are_fixed_and_balanced() -> None:
    tuned, reported = set(suites.TUNED_ON), set(suites.REPORTED_ON)
    assert not tuned & reported
    assert tuned | reported == {*suites.STUDY_WALKERS, *suites.MAZES}
    for half in (tuned, reported):
        domains = Counter(map(domain_of, half))
        assert domains["MuJoCo"] == 9
        assert domains["Maze2d"] in (1, 2)
        assert all(sum(name.startswith(f"{task}-") for name in half) == 3 for task in suites.WALKERS)
        assert all(any(name.endswith(f"-{quality}") for name in half) for quality in suites.QUALITIES)


def test_candidates_that_differ_in_numbers_are_one_program() -> None:
    plan = make_plan(suites.expanded(["search"]), data=FILES, only=["hopper-medium"])
    programs = [{member.variant for member in group.members} for group in make_groups(plan, plan.runs, 1000, FILES)]
    assert sorted(map(len, programs)) == [1, 1, 1, 2]
    assert {"ASPC", "discount = 0.995"} == max(programs, key=len)


@pytest.fixture
def candidates():
    with registries.restored():
        load_plugin(BENCHMARKS / "candidates.py")
        yield sys.modules["aspc_plugin"]


SMALL = {"actor_hidden_dim": 8, "critic_hidden_dim": 8, "batch_size": 8, "critic_hidden_layers": 1}


def test_the_critics_penalty_is_rebracs(candidates) -> None:
    """Both algorithms on one state: neither the actor's step nor what else differs has a part in the critics' first."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape)  # noqa: E731
    masks = np.array([1.0] * 6 + [0.0] * 2)
    batch = Batch(draw(8, 4), np.tanh(draw(8, 2)), draw(8), draw(8, 4), masks, np.tanh(draw(8, 2)))
    noise = {"target_policy": draw(8, 2)}
    penalised, plain = (
        base(**SMALL, critic_lr=1e-3, **more)
        for base, more in ((candidates.CriticPenalty, {"beta2": 0.5}), (TD3BC, {}))
    )
    rebrac = ReBRAC(beta2=0.5, critic_lr=1e-3, batch_size=8)
    with jax.enable_x64():
        state = jax.tree.map(jnp.float64, plain.init(jax.random.key(0), Spec(4, 2)))
        learned = [
            algorithm.prepare(state, batch, noise, frozenset({CRITIC})).state.critics
            for algorithm in (penalised, rebrac, plain)
        ]
        for a, b in zip(*map(jax.tree.leaves, learned[:2]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        assert not equal(learned[0], learned[2])
        lower = np.asarray(plain.td_target(state, batch, noise).y - penalised.td_target(state, batch, noise).y)
    assert (lower[:6] > 0).all()
    assert (lower[6:] == 0).all()  # after the end of an episode there is nothing to punish


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_ratios_of_two_scales_train_as_one_program(candidates) -> None:
    plan = make_plan(suites.expanded(["candidates"]), data=FILES, only=["maze2d-medium"])
    groups = make_groups(plan, plan.runs, 1000, FILES)
    assert [len(group.members) for group in groups] == [4, 4 * len(candidates.RATIOS), 4, 4, 4]


def test_the_long_search_shares_the_runs_of_tier_a(candidates) -> None:
    long, tier_a = (make_plan(suites.expanded([name]), data=FILES) for name in ("candidates_long", "study_a"))
    shared = long.runs.keys() & tier_a.runs.keys()
    assert len(long.runs) == 6 * (18 * 2 + 3 * 4) + 2 * 2 * len(candidates.SPREAD)
    assert len(shared) == 2 * (18 * 2 + 3 * 4)


def test_the_slower_scale_goes_as_far_in_a_million_steps_as_aspcs_in_300_000(candidates) -> None:
    def way(run: RunSpec) -> float:
        scale = with_horizon(run.algorithm(), run.steps)
        return float(scale.scale_optimiser().learning_rate(jnp.arange(scale.scale_updates())).sum())

    plan = make_plan(suites.expanded(["candidates_long"]), data=FILES, only=["scale lr*"])
    assert {run.steps for run in plan.runs.values()} == {1_000_000}
    (slower,) = {way(run) for run in plan.runs.values()}
    assert slower == pytest.approx(way(RunSpec("aspc", "maze2d-medium", seed=0, steps=300_000)), rel=2e-3)
