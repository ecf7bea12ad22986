"""Algorithms for choices: their formulas against slow references in float64, derivatives, learning, and masks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import small

from aspc import algorithms
from aspc.action_space import ActionSpace, Factor, joint_options
from aspc.adaptive_scale import raw_from_scale
from aspc.algorithms.fields import with_horizon
from aspc.algorithms.interface import INNER, Batch, Noise, Parts, Spec, schedule_length
from aspc.export import export, load_stablehlo, render_files
from aspc.policy import Policy
from aspc.policy_kinds import KINDS

SPECS = {
    "choice": Spec(4, 3, factors=(3,)),
    "masked": Spec(5, 3, factors=(3,), masked=(0, 2)),
    "two choices": Spec(5, 5, factors=(3, 2), masked=(1, 4)),
    "mixed": Spec(5, 5, factors=(3, 0, 0), masked=(2,)),
}
NAMES = [name for name in algorithms.names() if algorithms.default(name).handles_choices]
ADAPTIVE = [name for name in NAMES if "aspc" in name]
ALL_PARTS: Parts = frozenset({"critic", INNER})


def specs_of(name: str) -> dict[str, Spec]:
    is_numeric = algorithms.default(name).handles_numbers
    return {key: spec for key, spec in SPECS.items() if is_numeric or 0 not in spec.factors}


CASES = [(name, key) for name in NAMES for key in specs_of(name)]


def random_batch(spec: Spec, size: int, seed: int = 0) -> Batch:
    """Return transitions whose masks allow the logged options and, in the next state, at least one option."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, max(k, 1), size) for k in spec.factors], 1)
    columns = []
    for i, k in enumerate(spec.factors):
        columns += [np.eye(k)[codes[:, i]] * 2 - 1 if k else rng.uniform(-1, 1, (size, 1))]
    actions = np.concatenate(columns, 1)
    masked = list(spec.masked)

    def observations(is_logged: bool) -> np.ndarray:
        seen = rng.standard_normal((size, spec.obs_dim))
        if masked:
            masks = rng.integers(0, 2, (size, len(masked)))
            seen[:, -len(masked) :] = np.maximum(masks, actions[:, masked] > 0) if is_logged else masks
        return seen

    arrays = observations(True), actions, rng.standard_normal(size), observations(False), rng.random(size) > 0.1
    return Batch(*(jnp.asarray(x, dtype=float) for x in arrays))


def random_noise(algorithm: Any, spec: Spec, seed: int = 1) -> Noise:
    rng = np.random.default_rng(seed)
    draws = algorithm.noise(spec, algorithm.batch_size)
    return {name: jnp.asarray(rng.standard_normal(draw.shape), dtype=float) for name, draw in draws.items()}


def prepared(name: str, spec: Spec) -> tuple[Any, Any, Batch, Noise]:
    """Return a small algorithm with a state in which targets differ from networks, a batch and noise."""
    algorithm = small(algorithms.default(name))
    base = algorithm if algorithm.base is None else algorithm.base
    state = base.init(jax.random.key(0), spec)
    state = jax.tree.map(lambda x: x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x, state)
    batch, noise = random_batch(spec, algorithm.batch_size), random_noise(base, spec)
    for _ in range(3):
        state, _ = base.update(state, batch, noise, ALL_PARTS)
    return algorithm, state, batch, noise


# ── references: loops over rows and combinations in float64 ─────────────────────────────────────────────────────────


def forward(net: Any, x: np.ndarray, member: int | None = None) -> np.ndarray:
    pick = (lambda a: np.asarray(a)) if member is None else (lambda a: np.asarray(a)[member])
    for i, layer in enumerate(net.layers):
        x = x @ pick(layer.weight) + pick(layer.bias)
        if i < len(net.layers) - 1:
            x = np.maximum(x, 0)
            if net.norms:
                norm = net.norms[i]
                x = (x - x.mean()) / np.sqrt(x.var() + norm.eps) * pick(norm.scale) + pick(norm.bias)
    return x


def slow_policy(spec: Spec, net: Any, s: np.ndarray) -> tuple[list[float], list[float], np.ndarray]:
    """Return π(j|s) and log π(j|s) of every combination, and the numbers."""
    logits = forward(net, s)
    masks = dict(zip(spec.masked, s[len(s) - len(spec.masked) :], strict=True))
    allowed = [masks.get(i, 1) == 1 for i in range(spec.act_dim)]
    probability, logs = [], []
    for options in joint_options(spec.factors):
        log, start = 0.0, 0
        for k in spec.factors:
            block = range(start, start + max(k, 1))
            start = block.stop
            if not k:
                continue
            usable = [i for i in block if allowed[i]] or list(block)
            (chosen,) = [i for i in block if options[i]]
            total = np.log(sum(np.exp(logits[i]) for i in usable))
            log += logits[chosen] - total if chosen in usable else -np.inf
        logs.append(log)
        probability.append(np.exp(log))
    starts = np.cumsum([0, *(max(k, 1) for k in spec.factors)])
    return probability, logs, np.tanh(logits[[int(i) for i, k in zip(starts, spec.factors, strict=False) if not k]])


def chosen_combination(spec: Spec, action: np.ndarray) -> int:
    options = joint_options(spec.factors)
    choice = np.repeat(np.array(spec.factors) > 0, np.maximum(spec.factors, 1))
    return int(np.flatnonzero((options[:, choice] == (action[choice] > 0)).all(1))[0])


def numbers_of(spec: Spec, action: np.ndarray) -> np.ndarray:
    return action[np.repeat(np.array(spec.factors) == 0, np.maximum(spec.factors, 1))]


def rows_of(batch: Batch) -> Any:
    return zip(*(np.asarray(part) for part in batch[:5]), strict=True)


def slow_constraint(spec: Spec, net: Any, s: np.ndarray, a: np.ndarray) -> float:
    _, logs, numbers = slow_policy(spec, net, s)
    error = np.square(numbers - numbers_of(spec, a)).mean() if 0 in spec.factors else 0.0
    return float(error - logs[chosen_combination(spec, a)])


@pytest.mark.parametrize("key", SPECS)
def test_behavior_cloning_matches_a_slow_reference(key: str) -> None:
    with jax.enable_x64(True):
        spec = SPECS[key]
        algorithm, state, batch, noise = prepared("discrete_bc", spec)
        _, metrics = algorithm.update(state, batch, noise, ALL_PARTS)
        expected = np.mean([slow_constraint(spec, state.actor.net, s, a) for s, a, *_ in rows_of(batch)])
        np.testing.assert_allclose(metrics["bc_loss"], expected, rtol=1e-10)


@pytest.mark.parametrize("key", SPECS)
def test_td3_bc_matches_a_slow_reference(key: str) -> None:
    with jax.enable_x64(True):
        spec = SPECS[key]
        algorithm, state, batch, noise = prepared("discrete_td3_bc", spec)
        ctx = algorithm.prepare(state, batch, noise, frozenset())
        q, c = algorithm.q_and_constraint(ctx, state.actor)
        critic, target = state.critics.members.net, state.critics_target.members.net
        for i, (s, a, r, s2, m) in enumerate(rows_of(batch)):
            p, _, numbers = slow_policy(spec, state.actor.net, s)
            np.testing.assert_allclose(q[i], np.dot(p, forward(critic, np.append(s, numbers), 0)), rtol=1e-9)
            np.testing.assert_allclose(c[i], slow_constraint(spec, state.actor.net, s, a), 1e-9, 1e-12)
            p2, _, numbers2 = slow_policy(spec, state.actor_target.net, s2)
            if 0 in spec.factors:
                epsilon = np.clip(0.2 * np.asarray(noise["target_policy"][i]), -0.5, 0.5)
                numbers2 = np.clip(numbers2 + epsilon, -1, 1)
            lowest = np.minimum(*(forward(target, np.append(s2, numbers2), k) for k in (0, 1)))
            np.testing.assert_allclose(ctx.extra.y[i], r + 0.99 * m * np.dot(p2, lowest), rtol=1e-9)


@pytest.mark.parametrize("key", SPECS)
def test_iql_matches_a_slow_reference(key: str) -> None:
    with jax.enable_x64(True):
        spec = SPECS[key]
        algorithm, state, batch, noise = prepared("discrete_iql", spec)
        _, metrics = algorithm.update(state, batch, noise, ALL_PARTS)
        value, critic_loss, actor_loss = [], [], []
        for s, a, r, s2, m in rows_of(batch):
            x, j = np.append(s, numbers_of(spec, a)), chosen_combination(spec, a)
            target = min(forward(state.critics_target.members.net, x, k)[j] for k in (0, 1))
            advantage = target - forward(state.value.net, s)[0]
            value.append(abs(0.7 - (advantage < 0)) * advantage**2)
            y = r + 0.99 * m * forward(state.value.net, s2)[0]
            critic_loss += [(forward(state.critics.members.net, x, k)[j] - y) ** 2 for k in (0, 1)]
            weight = min(np.exp(3 * advantage), 100)
            actor_loss.append(weight * slow_constraint(spec, state.actor.net, s, a))
        np.testing.assert_allclose(metrics["value_loss"], np.mean(value), rtol=1e-9)
        np.testing.assert_allclose(metrics["critic_loss"], np.mean(critic_loss), rtol=1e-9)
        np.testing.assert_allclose(metrics["actor_loss"], np.mean(actor_loss), rtol=1e-9)


@pytest.mark.parametrize("key", specs_of("discrete_cql"))
def test_cql_matches_a_slow_reference(key: str) -> None:
    with jax.enable_x64(True):
        spec = SPECS[key]
        algorithm, state, batch, noise = prepared("discrete_cql", spec)
        _, metrics = algorithm.update(state, batch, noise, ALL_PARTS)
        options, errors, penalties = joint_options(spec.factors), [], []

        def usable(s: np.ndarray) -> list[int]:
            """Return the allowed combinations; all of them if none is allowed."""
            masks = s[len(s) - len(spec.masked) :]
            fine = [j for j, o in enumerate(options) if all(o[i] <= m for i, m in zip(spec.masked, masks, strict=True))]
            return fine or list(range(len(options)))

        for s, a, r, s2, m in rows_of(batch):
            online = [forward(state.critics.members.net, s2, k) for k in (0, 1)]
            later = [forward(state.critics_target.members.net, s2, k) for k in (0, 1)]
            best = max(usable(s2), key=lambda j: online[0][j] + online[1][j])
            y = r + 0.99 * m * min(later[0][best], later[1][best])
            j = chosen_combination(spec, a)
            q = [forward(state.critics.members.net, s, k) for k in (0, 1)]
            errors.append(sum((q_k[j] - y) ** 2 for q_k in q))
            penalties.append(sum(np.log(sum(np.exp(q_k[i]) for i in usable(s))) - q_k[j] for q_k in q))
        np.testing.assert_allclose(metrics["critic_loss"], np.mean(errors), rtol=1e-9)
        np.testing.assert_allclose(metrics["cql_loss"], np.mean(penalties), rtol=1e-9)


# ── the outer level ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "key"), [case for case in CASES if case[0] in ADAPTIVE])
def test_outer_derivative_matches_finite_differences(name: str, key: str) -> None:
    with jax.enable_x64(True):
        spec = SPECS[key]
        algorithm, state, batch, noise = prepared(name, spec)
        base = algorithm.base
        batch = batch._replace(next_observations=batch.observations)  # so that at least one option is allowed
        outer = replace(algorithm.start(state).scale, ema_q=jnp.asarray(0.7))
        here = float(outer.scale)

        @jax.jit
        def outer_level(scale: Any) -> Any:
            ctx = base.prepare(state, batch, noise, ALL_PARTS)
            inner, _, metrics = algorithm.outer_update(ctx, ctx, replace(outer, raw=raw_from_scale(scale)))
            derivatives = tuple(metrics[f"dl{i}_dscale"] for i in (1, 2, 3))
            return derivatives, base.outer_terms(ctx, inner.params, here), inner.constraint

        got, fixed, before = outer_level(here)
        fixed_l2 = ((1 - algorithm.ema) * (fixed.q.mean() - outer.ema_q)) ** 2

        def losses(scale: float) -> np.ndarray:
            after = outer_level(scale)[1]
            l1 = -fixed.q_weight * after.q.mean() / jnp.abs(fixed.q).mean()
            l1 = l1 + (fixed.constraint_weight * after.constraint).mean()
            l2 = ((1 - algorithm.ema) * (after.q.mean() - outer.ema_q)) ** 2
            return np.array([l1, l2, fixed_l2 * before.max() * jnp.abs(after.constraint - before).max()])

        h = 1e-4 * here
        slopes = (losses(here + h) - losses(here - h)) / (2 * h)
        np.testing.assert_allclose(got, slopes, rtol=2e-4, atol=1e-12)


# ── acting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["masked", "two choices", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_masks_are_never_violated_in_100_000_actions(name: str, key: str) -> None:
    if key not in specs_of(name):
        pytest.skip("the algorithm learns choices only")
    spec = SPECS[key]
    algorithm = small(algorithms.default(name))
    export = algorithm.policy(algorithm.init(jax.random.key(0), spec))
    arrays = {name: np.asarray(array) for name, array in export.arrays.items()}
    rng, count = np.random.default_rng(0), len(spec.masked)
    observations = rng.standard_normal((100_000, spec.obs_dim)).astype(np.float32)
    masks = rng.integers(0, 2, (100_000, count))
    observations[:, -count:] = masks
    actions = (KINDS[export.kind].act(arrays, export.settings, observations) + 1) / 2
    assert not (actions[:, list(spec.masked)] * (1 - masks)).any()
    start = 0
    for k in spec.factors:  # exactly one option, unless all are forbidden
        block = slice(start, start + max(k, 1))
        start = block.stop
        if k:
            allowed = np.ones((100_000, spec.act_dim), bool)
            allowed[:, list(spec.masked)] = masks == 1
            np.testing.assert_array_equal(actions[:, block].sum(1), allowed[:, block].any(1))
    assert export.act is not None
    theirs = np.asarray(export.act(jnp.asarray(observations[:5_000])))
    same = np.isclose(theirs, 2 * actions[:5_000] - 1, atol=1e-5).all(1)
    assert same.mean() > 0.999  # near a tie, rounding can select another option


def policy_of(name: str, spec: Spec) -> Policy:
    """Return a policy with random weights N(0, 1/in), so that its actions vary; nothing is compiled."""
    exports: list[Any] = []

    def arrays(key: Any) -> dict[str, Any]:
        algorithm = small(algorithms.default(name))
        exports.append(algorithm.policy(algorithm.init(key, spec)))
        return exports[0].arrays

    shapes, rng = jax.eval_shape(arrays, jax.random.key(0)), np.random.default_rng(0)
    weights = {
        key: rng.normal(0, (a.shape[-2] if a.ndim > 1 else 25) ** -0.5, a.shape).astype(np.float32)
        for key, a in shapes.items()
    }
    plain, masks = np.ones(spec.obs_dim - len(spec.masked)), np.ones(len(spec.masked))
    factors = tuple(Factor(f"a{i}", tuple("xyz"[:size])) for i, size in enumerate(spec.factors))
    space = ActionSpace(factors, spec.masked)
    vectors = (
        np.append(0.3 * plain, 0 * masks),
        np.append(1.7 * plain, masks),
        np.where(space.is_choice, 0, -2),
        np.where(space.is_choice, 1, 3),
    )
    info = {"algo": name, "action_space": space.to_json()}
    return Policy(
        exports[0].kind, weights, exports[0].settings, *(vector.astype(np.float32) for vector in vectors), info
    )


def seen_by(spec: Spec, rows: int) -> np.ndarray:
    """Return random observations with random masks."""
    rng = np.random.default_rng(0)
    seen = rng.normal(0, 2, (rows, spec.obs_dim)).astype(np.float32)
    seen[:, spec.obs_dim - len(spec.masked) :] = rng.integers(0, 2, (rows, len(spec.masked)))
    return seen


def clear_choices(policy: Policy, logits: np.ndarray) -> np.ndarray:
    """Return the rows where the best option of each choice leads by more than rounding errors."""
    space = policy.action_space
    assert space is not None
    blocks = [block for factor, block in space.blocks() if factor.choices]
    if policy.settings["joint"]:
        blocks = [slice(0, logits.shape[1])]
    gaps = [np.diff(np.sort(logits[:, block].astype(float), 1)[:, -2:], axis=1)[:, 0] for block in blocks]
    return np.min(gaps, 0) > 1e-4


@pytest.mark.parametrize(("name", "key"), CASES)
def test_onnx_chooses_like_the_policy(name: str, key: str) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    policy, seen = policy_of(name, SPECS[key]), seen_by(SPECS[key], 10_000)
    session = onnxruntime.InferenceSession(render_files(policy, "onnx")[""], providers=["CPUExecutionProvider"])
    actions, logits, indices = session.run(None, {"observations": seen})
    expected, scores = policy.act(seen), policy.logits(seen)
    np.testing.assert_allclose(logits, scores, rtol=1e-5, atol=1e-5)
    is_clear = clear_choices(policy, scores)
    assert is_clear.mean() > 0.5  # where all options are forbidden, none leads
    np.testing.assert_allclose(actions[is_clear], expected[is_clear], atol=1e-5)
    space = policy.action_space
    assert space is not None
    np.testing.assert_array_equal(indices, space.decode(actions)[:, np.array(space.sizes) > 0])
    assert len(np.unique(indices, axis=0)) > 1  # the policy is not constant


@pytest.mark.parametrize(("name", "key"), [("discrete_cql", "two choices"), ("discrete_td3_bc", "mixed")])
def test_other_formats_choose_like_the_policy(name: str, key: str, tmp_path: Path) -> None:
    policy, seen = policy_of(name, SPECS[key]), seen_by(SPECS[key], 2_000)
    policy.save(tmp_path / "policy")
    program = load_stablehlo(export(tmp_path / "policy", "stablehlo", tmp_path / "p.stablehlo"))
    export(tmp_path / "policy", "numpy", tmp_path / "numpy")
    np.save(tmp_path / "seen.npy", seen)
    code = "import numpy as np, policy; x = np.load('../seen.npy')\n"
    code += "np.savez('../out.npz', policy.act(x), policy.logits(x))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "numpy", check=True)
    expected, scores = policy.act(seen), policy.logits(seen)
    is_clear = clear_choices(policy, scores)
    with np.load(tmp_path / "out.npz") as found:
        results = [(program(seen), program.logits(seen)), (found["arr_0"], found["arr_1"])]
    for actions, logits in results:
        np.testing.assert_allclose(logits, scores, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(actions[is_clear], expected[is_clear], atol=1e-5)


@pytest.mark.parametrize(("name", "key"), CASES)
def test_a_state_keeps_its_types(name: str, key: str) -> None:
    """Otherwise a scan over steps does not compile, or compiles twice."""
    spec, algorithm = SPECS[key], small(algorithms.default(name))
    state = jax.eval_shape(lambda k: algorithm.init(k, spec), jax.random.key(0))
    batch, noise = random_batch(spec, algorithm.batch_size), random_noise(algorithm, spec)
    signature = lambda tree: [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]  # noqa: E731
    for parts in {parts for segment in algorithm.schedule() for parts in segment.steps}:
        after, metrics = jax.eval_shape(lambda s, p=parts: algorithm.update(s, batch, noise, p), state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert signature(after) == signature(state)
        assert all(metric.shape == () for metric in metrics.values())


# ── learning ────────────────────────────────────────────────────────────────────────────────────────────────────────

QUICK = {"batch_size": 64, "discount": 0.9, "actor_lr": 1e-3, "critic_lr": 1e-3, "value_lr": 1e-3, "tau": 0.02}
LINE = Spec(2, 2, factors=(2,), masked=(0,))  # a position, and a mask of "left", which is forbidden at the border
STEPS = 1_500


def quick(algorithm: Any) -> Any:
    if algorithm.base is not None:
        return replace(algorithm, base=quick(algorithm.base))
    fields = algorithm.__dataclass_fields__
    narrow = {name: 32 for name in fields if name.endswith("hidden_dim")}
    return replace(algorithm, **narrow, **{name: value for name, value in QUICK.items() if name in fields})


def walk(act: Any, episodes: int, seed: int) -> tuple[list[np.ndarray], float]:
    """Walk on a line in steps of 0.2; the reward is −|position|. Return transitions and the mean return."""
    rng = np.random.default_rng(seed)
    position, rows, total = rng.uniform(-1, 1, episodes), [], 0.0
    seen = lambda: np.stack([position, position > -1], 1).astype(np.float32)  # noqa: E731
    for _ in range(10):
        before = seen()
        right = np.where(before[:, 1] == 0, True, act(before, rng))
        position = position + np.where(right, 0.2, -0.2)
        rows.append((before, np.stack([~right, right], 1) * 2.0 - 1, -np.abs(position), seen()))
        total -= np.abs(position).mean()
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)], total


@pytest.mark.parametrize("name", NAMES)
def test_learns(name: str) -> None:
    def clumsy(seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(len(seen)) < 0.65, seen[:, 0] < 0, rng.random(len(seen)) < 0.5)

    (s, a, r, s2), behavior = walk(clumsy, 400, seed=0)
    algorithm = with_horizon(quick(algorithms.default(name)), STEPS)
    data = Batch(*(jnp.asarray(x, jnp.float32) for x in (s, a, r, s2, np.ones(len(r)))))
    length = schedule_length(algorithm.schedule())
    draws = algorithm.noise(LINE, algorithm.batch_size)

    @jax.jit
    def cycle(state: Any, key: Any) -> Any:
        begin = 0
        for segment in algorithm.schedule():

            def repeat(state: Any, first: Any, segment: Any = segment) -> Any:
                for i, parts in enumerate(segment.steps):
                    rows_key, noise_key = jax.random.split(jax.random.fold_in(key, first + i))
                    rows = jax.random.randint(rows_key, (algorithm.batch_size,), 0, len(r))
                    batch = jax.tree.map(lambda x, rows=rows: x[rows], data)
                    noise = {n: d.sample(noise_key, 1)[0] for n, d in draws.items()}
                    state, _ = algorithm.update(state, batch, noise, parts)
                return state, None

            state, _ = jax.lax.scan(repeat, state, begin + len(segment.steps) * jnp.arange(segment.repeats))
            begin += len(segment.steps) * segment.repeats
        assert begin == length
        return state

    state = jax.jit(lambda key: algorithm.init(key, LINE))(jax.random.key(0))
    for key in jax.random.split(jax.random.key(1), STEPS // length):
        state = cycle(state, key)
    export = algorithm.policy(state)
    arrays = {key: np.asarray(array) for key, array in export.arrays.items()}
    _, score = walk(lambda seen, _: KINDS[export.kind].act(arrays, export.settings, seen)[:, 1] > 0, 400, seed=1)
    _, best = walk(lambda seen, _: seen[:, 0] < 0, 400, seed=1)
    assert score > best - 0.25 * (best - behavior)
    if name in ADAPTIVE:
        assert 0 < float(state.scale.scale) != pytest.approx(algorithm.initial_scale, rel=1e-4)
