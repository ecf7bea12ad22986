"""The compiled loop: its random draws, its number of compilations, and the agreement of its two programs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aspc import algorithms
from aspc.algorithms.td3_bc import TD3BC
from aspc.training.compiled_loop import Loop, RowRange, full_blocks_per_chunk, plan_chunk, start_runs
from aspc.training.hyperparameters import replace_fields
from aspc.training.prepared_data import PreparedDataset
from aspc.training.run_config import TrainOptions
from tiny import TINY, make_dataset


def tiny_loop(algo="aspc", seeds=(0,), vectorize=False, **hyper):
    algorithm = replace_fields(algorithms.default(algo), {**TINY, **hyper})
    problem = PreparedDataset.of(make_dataset(), algorithm, TrainOptions())
    loop = Loop(algorithm, problem.spec, problem.layout, vectorize)
    n = len(seeds)
    source = RowRange(jnp.zeros(n, jnp.int32), jnp.full(n, len(problem.rows), jnp.int32))
    runs = start_runs(algorithm, problem.spec, jnp.asarray(seeds), source)
    return loop, runs.state, runs._replace(state=None), jnp.asarray(problem.rows)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("algo", ["td3_bc", "aspc"])
def test_state_keeps_its_types_so_nothing_recompiles(algo):
    loop, state, runs, table = tiny_loop(algo)
    before = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)
    blocks, steps = Loop.run_blocks._cache_size(), Loop.run_steps._cache_size()
    for i in range(3):
        state, _ = loop.run_blocks(state, runs, table, jnp.asarray(i), blocks=1)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == before
    for i in range(3):
        state, *_ = loop.run_steps(state, runs, table, jnp.asarray(60 + i), jnp.asarray(i + 1))
    assert Loop.run_blocks._cache_size() - blocks == 1
    assert Loop.run_steps._cache_size() - steps == 1


@pytest.mark.parametrize(("algo", "hyper"), [("td3_bc", {}), ("aspc", {}), ("aspc", {"k_alpha": 3})])
def test_single_steps_equal_blocks(algo, hyper):
    loop, state, runs, table = tiny_loop(algo, **hyper)
    copy = jax.tree.map(jnp.copy, state)
    by_block, metrics = loop.run_blocks(state, runs, table, jnp.asarray(0), blocks=2)
    by_step, last, computed = loop.run_steps(copy, runs, table, jnp.asarray(0), jnp.asarray(2 * loop.block_steps))
    for ours, theirs in zip(leaves(by_step), leaves(by_block), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)
    assert set(last) == set(metrics)
    assert all(flag.all() for flag in computed.values())
    for name, values in metrics.items():
        np.testing.assert_allclose(last[name], values[:, -1], rtol=2e-3, atol=1e-5, err_msg=name)


def test_single_steps_sample_each_block_once():
    drawn = []

    class Counting(Loop):
        def sample_block(self, algorithm, table, run, block):
            jax.debug.callback(lambda block: drawn.append(int(block)), block)
            return super().sample_block(algorithm, table, run, block)

    loop, state, runs, table = tiny_loop("td3_bc")
    counting = Counting(loop.algorithm, loop.spec, loop.layout, loop.vectorize)
    assert loop.block_steps == 20
    counting.run_steps(state, runs, table, jnp.asarray(70), jnp.asarray(35))
    jax.effects_barrier()
    assert drawn == [3, 4, 5]


def test_metrics_of_few_single_steps_are_marked_as_not_computed():
    loop, state, runs, table = tiny_loop("aspc")
    _, _, computed = loop.run_steps(state, runs, table, jnp.asarray(0), jnp.asarray(1))
    assert computed["critic_loss"].all()
    assert not computed["actor_loss"].any()
    assert not computed["l1"].any()


def test_a_run_does_not_depend_on_other_runs():
    loop, state, runs, table = tiny_loop(seeds=(0, 7, 3))
    together, _ = loop.run_blocks(state, runs, table, jnp.asarray(0), blocks=2)
    loop, state, runs, table = tiny_loop(seeds=(7,))
    alone, _ = loop.run_blocks(state, runs, table, jnp.asarray(0), blocks=2)
    for a, b in zip(leaves(together), leaves(alone), strict=True):
        np.testing.assert_array_equal(a[1], b[0])


def test_vectorized_runs_equal_sequential_runs():
    """`vmap` (accelerators) and a loop over runs (CPU) compute the same."""
    results = []
    for vectorize in (False, True):
        loop, state, runs, table = tiny_loop(seeds=(0, 1), vectorize=vectorize)
        results.append(loop.run_blocks(state, runs, table, jnp.asarray(0), blocks=1)[0])
    for a, b in zip(leaves(results[0]), leaves(results[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_hyperparameters_can_differ_between_runs_of_one_program():
    loop, _, _, table = tiny_loop("td3_bc")
    source = RowRange(jnp.zeros(2, jnp.int32), jnp.full(2, len(table), jnp.int32))
    overrides = {"alpha": jnp.asarray([1.0, 4.0])}
    runs = start_runs(loop.algorithm, loop.spec, jnp.asarray([5, 5]), source, overrides)
    both, _ = loop.run_blocks(runs.state, runs._replace(state=None), table, jnp.asarray(0), blocks=1)
    for i, alpha in enumerate((1.0, 4.0)):
        alone_loop, state, alone_runs, table = tiny_loop("td3_bc", seeds=(5,), alpha=alpha)
        alone, _ = alone_loop.run_blocks(state, alone_runs, table, jnp.asarray(0), blocks=1)
        for a, b in zip(leaves(both), leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b[0], rtol=2e-4, atol=2e-6)


def test_minibatches_sample_the_data_uniformly():
    loop, _, runs, table = tiny_loop()
    table = table.at[:, 0].set(jnp.arange(len(table)))
    one = runs._replace(state=None, key=runs.key[0], source=RowRange(runs.source.offset[0], runs.source.size[0]))
    drawn = np.concatenate(
        [
            np.asarray(loop.sample_block(loop.algorithm, table, one, jnp.asarray(i))[0].observations[..., 0]).ravel()
            for i in range(60)
        ]
    )
    counts = np.bincount(drawn.astype(int), minlength=len(table))
    expected = len(drawn) / len(table)
    # χ² with len − 1 degrees of freedom is below its mean + 5 standard deviations.
    chi2 = np.square(counts - expected).sum() / expected
    assert chi2 < len(table) + 5 * np.sqrt(2 * len(table))
    assert counts.min() > 0


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.integers(1, 400), st.integers(1, 70), st.integers(1, 200))
def test_the_pieces_of_a_chunk_have_no_gap_or_overlap(first, length, block, chunk):
    usual = full_blocks_per_chunk(chunk, block)
    pieces = plan_chunk(first, first + length, block, usual)
    at = first
    for piece in pieces:
        assert piece.first_step == at
        assert piece.steps > 0
        at += piece.steps
        if piece.blocks:
            assert piece.blocks == usual
            assert piece.first_step % block == 0
            assert piece.steps == usual * block
    assert at == first + length


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 50), st.integers(1, 70), st.integers(1, 500))
def test_every_full_chunk_has_few_single_steps(index, block, chunk):
    usual = full_blocks_per_chunk(chunk, block)
    pieces = plan_chunk(index * chunk, (index + 1) * chunk, block, usual)
    single = sum(piece.steps for piece in pieces if not piece.blocks)
    assert single <= 2 * block


def test_a_metric_can_be_an_integer_or_a_boolean():
    class Counted(TD3BC):
        def update(self, state, batch, noise, parts):
            state, metrics = super().update(state, batch, noise, parts)
            return state, {**metrics, "rows": jnp.asarray(len(batch.rewards)), "paid": batch.rewards.max() > 0}

    loop, state, runs, table = tiny_loop("td3_bc")
    counted = Loop(Counted(**dataclasses.asdict(loop.algorithm)), loop.spec, loop.layout, loop.vectorize)
    _, metrics, computed = counted.run_steps(state, runs, table, jnp.asarray(0), jnp.asarray(3))
    assert computed["rows"].all()
    np.testing.assert_array_equal(metrics["rows"], TINY["batch_size"])
