"""The monitor against independent computations of its columns, and in runs."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import aspc
from algorithms.problems import SPEC, floats, mid_training_state, random_batch, random_noise, small
from aspc import algorithms, theory
from aspc.algorithms.interface import CRITIC, INNER, SCALE
from aspc.errors import AspcError
from registries import number_names
from theory_cases import at_most, exact, rows
from tiny import TINY

CHANGES = {"theory_delta_q", "theory_delta_l_bc", "theory_delta_l_inf"}
ALL = CHANGES | {
    f"theory_{name}" for name in ("c", "c_inf", "x_inf", "l_q", "prop1_upper", "prop1_lower", "kappa_star")
}
STEP = frozenset({CRITIC, INNER})
SHALLOW = {"actor_hidden_layers": 1, "critic_hidden_layers": 1}  # less to compile


def some_state(base):
    """A state with random weights, drawn by NumPy: nothing to compile."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: base.init(jax.random.key(0), SPEC))

    def fill(leaf):
        weights = jnp.issubdtype(leaf.dtype, jnp.floating)
        return floats(0.5 * rng.standard_normal(leaf.shape)) if weights else jnp.zeros_like(leaf)

    return mid_training_state(jax.tree.map(fill, shapes))


def on_host(function):
    """Results as NumPy numbers."""
    return lambda *inputs: jax.device_get(function(*inputs))


def test_monitor_matches_the_scale_update():
    """The same numbers, computed differently: (8)'s sups, which are means over action dimensions."""
    algorithm = small(algorithms.default("aspc"))
    algorithm = replace(algorithm, base=replace(algorithm.base, **SHALLOW))
    with jax.enable_x64(True):
        state = algorithm.start(some_state(algorithm.base))

        @jax.jit
        def both(state, batch, noise):
            logged = algorithm.update(state, batch, noise, STEP | {SCALE})[1]
            return theory.monitor(algorithm, state, batch, noise, STEP), logged

        seen, logged = on_host(both)(state, random_batch(0, algorithm.batch_size), random_noise(1, algorithm))
    assert seen["theory_delta_q"] == pytest.approx(logged["delta_q"], rel=1e-8)
    assert seen["theory_c_inf"] ** 2 == pytest.approx(SPEC.act_dim * logged["bc_sup"], rel=1e-8)
    assert seen["theory_delta_l_inf"] == pytest.approx(SPEC.act_dim * logged["delta_bc_sup"], rel=1e-8)
    assert seen["theory_c"] ** 2 == pytest.approx(SPEC.act_dim * logged["bc_loss"], rel=1e-8)
    assert seen["theory_kappa_star"] == pytest.approx(
        theory.kappa_star(seen["theory_delta_q"], seen["theory_delta_l_inf"], seen["theory_c_inf"]), rel=1e-8
    )


def test_monitor_on_a_linear_critic():
    """Q = g·a on every row: the Lipschitz estimate is exact, and the mirrored step makes Proposition 1 an equality."""
    pi, g = jnp.array([[0.6, 0.8]] * 3), jnp.array([3.0, 4.0])
    seen = theory.observed(pi, -2 * pi, 0 * pi, pi @ g, -2 * pi @ g, jnp.tile(g, (3, 1)))
    assert seen["theory_l_q"] == pytest.approx(5)
    assert seen["theory_delta_q"] == pytest.approx(-3 * 5)
    assert seen["theory_delta_l_bc"] == pytest.approx(3)
    assert seen["theory_x_inf"] == pytest.approx(9)
    assert seen["theory_prop1_upper"] == pytest.approx(1)
    assert seen["theory_prop1_lower"] == pytest.approx(1)
    assert seen["theory_kappa_star"] == pytest.approx(-15 / (3 + 3 * 2 + 3))
    nearer = theory.observed(pi, pi / 2, 0 * pi, pi @ g, pi @ g / 2, jnp.tile(g, (3, 1)))
    assert nearer["theory_delta_l_inf"] == pytest.approx(0.75)


def test_monitor_of_a_step_of_size_zero():
    seen = theory.observed(*(jnp.ones((2, 2)),) * 2, jnp.zeros((2, 2)), *(jnp.ones(2),) * 2, jnp.ones((2, 2)))
    assert seen["theory_prop1_upper"] == seen["theory_prop1_lower"] == seen["theory_kappa_star"] == 0
    assert seen["theory_l_q"] == pytest.approx(2**0.5)


@settings(exact, max_examples=25)
@given(rows())
def test_monitors_proposition_1_holds_on_every_batch(case):
    """Its L_Q is a lower bound of the true one, and yet large enough for Proposition 1 on the batch, whatever Q is."""
    wild = case._replace(q_next=np.where(case.moved > 1e-6, case.q_next * 1e3, case.q))  # jumps wherever it moves
    for c in (case, wild):
        values = (jnp.asarray(v) for v in (c.pi, c.pi_next, c.actions, c.q, c.q_next, 0 * c.pi))
        seen = theory.observed(*values)
        assert 0 <= seen["theory_prop1_upper"] <= 1.001
        at_most(abs(seen["theory_delta_q"]), seen["theory_l_q"] * c.moved.mean() ** 0.5, 1e-3)
        if c is case:
            at_most(seen["theory_l_q"], c.l_q, 1e-2)


@pytest.mark.parametrize("name", [*sorted(set(number_names()) - {"bc", "discrete_bc"}), "independent"])
def test_monitor_works_for_every_base(name):
    """All columns exist if the inner step updates a policy with one action per state."""
    if name == "independent":
        algorithm = replace(small(algorithms.default("aspc")), outer_batch="independent")
    else:
        algorithm = small(algorithms.default(name))
    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), SPEC))
    inputs = random_batch(0, algorithm.batch_size), random_noise(1, algorithm)
    seen = jax.eval_shape(lambda s, b, n: theory.monitor(algorithm, s, b, n, STEP), state, *inputs)
    sampled = name.split("+")[0] in ("cql", "diffusion_ql", "fql") or name.startswith("discrete")
    assert set(seen) == (CHANGES if sampled else ALL)


def test_monitor_uses_the_q_of_the_base():
    """IQL's Q is the smaller of two critics, at its policy's mean. By hand: with finite differences."""
    algorithm = small(algorithms.default("iql"))
    batch, noise = random_batch(0, algorithm.batch_size), random_noise(1, algorithm)

    @jax.jit
    def both(state, batch, noise):
        ctx = algorithm.prepare(state, batch, noise, STEP)
        inner = algorithm.inner_step(ctx, algorithm.scale)
        pi, pi_next = ctx.state.actor(batch.observations), inner.params(batch.observations)
        q = lambda a: ctx.state.critics(batch.observations, a).min(0)  # noqa: E731
        h = 1e-2
        slopes = jnp.stack([(q(pi + h * e) - q(pi - h * e)) / (2 * h) for e in jnp.eye(SPEC.act_dim)])
        first = ctx.state.critics(batch.observations, pi)[0] == q(pi)
        by_hand = (
            first.mean(),
            (q(pi_next) - q(pi)).mean(),
            jnp.square(pi_next - pi).sum(-1).max(),
            jnp.square(slopes).sum(0).max(),
        )
        return theory.monitor(algorithm, state, batch, noise, STEP), by_hand

    seen, (first, delta_q, x_inf, slope_squared) = on_host(both)(some_state(algorithm), batch, noise)
    assert 0 < first < 1  # each critic is the smaller one on some rows
    assert seen["theory_delta_q"] == pytest.approx(delta_q, rel=1e-2)
    assert seen["theory_x_inf"] == pytest.approx(x_inf, rel=1e-4)
    assert seen["theory_l_q"] == pytest.approx(slope_squared**0.5, rel=0.05)


def test_monitor_does_not_change_a_run(tiny, tmp_path, monkeypatch):
    """Its columns are filled where it was due, its panel is drawn, and nothing else differs in a single bit."""
    settings = dict(TINY, **SHALLOW, algo="td3_bc", log_every=20, seeds=[0, 1], quiet=True, tensorboard=False)
    plain = aspc.train(tiny, out=tmp_path / "plain", steps=80, **settings)
    titles = titles_drawn(monkeypatch)
    aspc.train(tiny, out=tmp_path / "watched", steps=60, monitor_every=40, **settings)
    watched = aspc.train(tiny, resume=tmp_path / "watched", steps=80, quiet=True)
    assert sum("κ*" in title for title in titles) == 2  # at the end of each part of the watched run
    metrics = watched.metrics
    assert set(metrics) == set(plain.metrics) | ALL
    for name, values in plain.metrics.items():
        np.testing.assert_array_equal(values, metrics[name], err_msg=name)
    for name, array in plain.policy.arrays.items():
        np.testing.assert_array_equal(array, watched.policy.arrays[name])
    due = metrics["step"] != 60  # 40 and 80, and the first row of all
    for name in ALL:
        assert np.isfinite(metrics[name][due]).all(), name
        assert np.isnan(metrics[name][~due]).all(), name
    one, other = (metrics["theory_c_inf"][due & (metrics["seed"] == seed)] for seed in (0, 1))
    assert (one != other).all()
    assert len(set(one)) == 3  # a fresh batch each time


def titles_drawn(monkeypatch) -> list[str]:
    """The titles of all panels that are drawn from now on."""
    import matplotlib.axes

    titles: list[str] = []
    really = matplotlib.axes.Axes.set

    def note(self, **options):
        titles.append(options.get("title", ""))
        return really(self, **options)

    monkeypatch.setattr(matplotlib.axes.Axes, "set", note)
    return titles


def test_monitor_rejects_unsupported_algorithms(tiny, tmp_path):
    with pytest.raises(AspcError, match="but bc has none"):
        aspc.train(tiny, algo="bc", out=tmp_path / "run", steps=20, monitor_every=10, quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(AspcError, match="--monitor-every"):
        aspc.train(tiny, out=tmp_path / "run", monitor_every=-1)
