"""The examples of custom algorithms and custom training loops."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspc
import registries
from aspc import algorithms, plugins
from aspc.__main__ import main
from aspc.authoring import CRITIC, INNER, Batch, Critic, Spec, ensemble, mlp
from aspc.errors import AspcError
from aspc.training.compiled_loop import Loop
from tiny import make_dataset

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"hidden_dim": 8, "batch_size": 8}
OPTIONS = {"steps": 20, "env": None, "quiet": True, "tensorboard": False}
METRICS = {
    "awac": {"critic_loss", "actor_loss"},
    "awac+aspc": {"critic_loss", "actor_loss", "l1", "l2", "dl1_dscale"},
    "edac": {"actor_loss", "td_loss", "similarity"},
    "td3_bc_dropout": {"critic_loss", "bc_loss"},
    "td3_bc_shared": {"critic_loss", "bc_loss"},
}
FILES = {"awac+aspc": "awac", "td3_bc_dropout": "dropout", "td3_bc_shared": "shared_encoder"}
SMALL_TD3 = {"actor_hidden_dim": 8, "critic_hidden_dim": 8, "batch_size": 8}


def run_example(name: str, *options: str) -> str:
    """Run an example as a script; return its output."""
    done = subprocess.run([sys.executable, EXAMPLES / name, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_lines(tree: ast.Module) -> int:
    """Count the lines of a module with code, without its docstring."""
    nodes = [node for statement in tree.body[1:] for node in ast.walk(statement)]
    return len({line for node in nodes if hasattr(node, "lineno") for line in (node.lineno, node.end_lineno)})


@pytest.mark.parametrize("name", METRICS)
def test_algorithm_trains_and_its_policy_acts(name: str, tmp_path: Path) -> None:
    programs = (Loop.run_blocks, Loop.run_steps)
    before = sum(program._cache_size() for program in programs)
    with registries.restored():
        plugins.load_plugin(EXAMPLES / f"{FILES.get(name, name)}.py")
        settings = SMALL_TD3 if "td3" in name else SMALL
        if "+" in name:
            settings = {f"base.{key}": value for key, value in settings.items()}
        run = aspc.train(make_dataset(200), algo=name, out=tmp_path / "run", **OPTIONS, **settings)
        assert sum(program._cache_size() for program in programs) - before <= 2
        assert METRICS[name] <= run.metrics.keys()
        assert all(np.isfinite(run.metrics[metric]).all() for metric in METRICS[name])
        if "+" in name:
            assert run.metrics["scale"][-1] != algorithms.default(name).initial_scale
    actions = run.policy.act(np.zeros((3, 4)))
    assert actions.shape == (3, 2)
    assert np.all(np.abs(actions) <= 1)


def test_residual_network_trains_from_the_command_line_and_acts_without_its_file(tmp_path: Path) -> None:
    options = ["--steps", "20", "--batch-size", "8", "--eval-every", "20", "--eval-episodes", "1", "--quiet"]
    names = ["--plugin", str(EXAMPLES / "residual.py"), "--actor", "residual", "--critic", "residual"]
    with registries.restored():
        assert main(["train", "maze2d-umaze?steps=500", *names, *options, "--out", str(tmp_path / "run")]) == 0
    policy = aspc.load_policy(tmp_path / "run")
    assert policy.kind == "program"
    assert np.isfinite(policy.act(np.zeros((3, 4)))).all()
    assert aspc.evaluate(tmp_path / "run", episodes=1)[0]["episodes"] == 1
    with pytest.raises(AspcError, match=r"Unknown network 'residual'.* --plugin"):
        aspc.train(resume=tmp_path / "run", steps=40, quiet=True)


def test_shared_encoder_is_the_critics(tmp_path: Path) -> None:
    with registries.restored():
        plugins.load_plugin(EXAMPLES / "shared_encoder.py")
        shared = replace(algorithms.default("td3_bc_shared"), **SMALL_TD3)
    state = shared.init(jax.random.key(0), Spec(4, 2))
    rng = np.random.default_rng(0)
    s, a, s_next = (jnp.asarray(rng.normal(size=(8, n)), jnp.float32) for n in (4, 2, 4))
    batch = Batch(s, jnp.tanh(a), jnp.ones(8), s_next, jnp.ones(8))
    before = state.actor.encoder
    state, _ = shared.update(state, batch, {"target_policy": jnp.zeros((8, 2))}, frozenset({CRITIC, INNER}))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, state.actor.encoder, state.critics.encoder))
    assert not jax.tree.all(jax.tree.map(jnp.array_equal, state.actor.encoder, before))


def test_dropout_drops_units_in_training_only() -> None:
    with registries.restored():
        plugins.load_plugin(EXAMPLES / "dropout.py")
        dropout = replace(algorithms.default("td3_bc_dropout"), **SMALL_TD3, actor_dropout=0.5)
    state = dropout.init(jax.random.key(0), Spec(4, 2))
    batch = Batch(jnp.ones((8, 4)), jnp.zeros((8, 2)), jnp.ones(8), jnp.ones((8, 4)), jnp.ones(8))
    draws = dropout.noise(Spec(4, 2), 8)
    noise = {name: draw.sample(jax.random.key(1), 1)[0] for name, draw in draws.items()}
    _, bc = dropout.q_and_constraint(dropout.prepare(state, batch, noise, frozenset({CRITIC})), state.actor)
    assert len(np.unique(bc)) > 1  # equal observations, different masks
    assert np.unique(np.asarray(dropout.policy(state).act(batch.observations)), axis=0).shape == (1, 2)


def test_edac_similarity_is_the_mean_cosine_of_gradients() -> None:
    with registries.restored():
        plugins.load_plugin(EXAMPLES / "edac.py")
        edac = replace(algorithms.default("edac"), n_critics=3)
    critics = ensemble(lambda key: Critic(mlp(key, 6, [8], 1)), jax.random.key(0), 3)
    rng = np.random.default_rng(0)
    s, a = jnp.asarray(rng.normal(size=(5, 4))), jnp.asarray(rng.normal(size=(5, 2)))
    gradients = [jax.vmap(jax.grad(critics.cut(k), argnums=1))(s, a) for k in range(3)]
    unit = [g / np.linalg.norm(g, axis=-1, keepdims=True) for g in gradients]
    pairs = [(unit[i] * unit[j]).sum(-1) for i in range(3) for j in range(3) if i != j]
    np.testing.assert_allclose(edac.similarity(critics, s, a), np.sum(pairs, 0).mean() / 2, rtol=1e-4)


def test_vmapped_hyperparameters_prints_one_row_per_alpha() -> None:
    header, *rows = run_example("vmapped_hyperparameters.py", "--cycles", "200", "--hidden-dim", "16").splitlines()
    assert header.split() == ["alpha", "critic_loss", "actor_q_mean", "bc_loss"]
    table = np.array([row.split() for row in rows], dtype=float)
    assert table.shape == (8, 4)
    assert table[-1, 3] > table[0, 3]  # a large alpha imitates less


def test_custom_loop_prints_a_decreasing_loss() -> None:
    output = run_example("custom_loop.py", "30")
    before, after = re.fullmatch(r"critic loss before: (\S+), after: (\S+)\n", output).groups()
    assert float(after) < float(before)


def test_examples_are_short() -> None:
    for name in ("awac.py", "edac.py"):
        kind = ast.parse((EXAMPLES / name).read_text()).body[-1]
        assert isinstance(kind, ast.ClassDef)
        assert kind.end_lineno is not None
        assert kind.end_lineno - kind.decorator_list[0].lineno + 1 <= 60, name
    limits = {"custom_loop.py": 25, "own_algorithm.py": 60, "residual.py": 20}
    for name, most in limits.items():
        assert code_lines(ast.parse((EXAMPLES / name).read_text())) <= most, name
    for name, most in {"one_sided_l2.py": 6, "early_stopping.py": 10}.items():
        assert code_lines(ast.Module([ast.Pass(), ast.parse((EXAMPLES / name).read_text()).body[-1]], [])) <= most, name


def test_line_counts_in_the_documents() -> None:
    page = (EXAMPLES.parent / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| \[`(\w+\.py)`\].*\| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 10
    for name, lines in rows:
        assert code_lines(ast.parse((EXAMPLES / name).read_text())) == int(lines), name
