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
from aspc.authoring import Critic, ensemble, mlp
from aspc.training.compiled_loop import Loop
from tiny import make_dataset

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"hidden_dim": 8, "batch_size": 8}
OPTIONS = {"steps": 20, "env": None, "quiet": True, "tensorboard": False}
METRICS = {
    "awac": {"critic_loss", "actor_loss"},
    "awac+aspc": {"critic_loss", "actor_loss", "l1", "l2", "dl1_dscale"},
    "edac": {"actor_loss", "td_loss", "similarity"},
}


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
        plugins.load_plugin(EXAMPLES / f"{name.removesuffix('+aspc')}.py")
        settings = {f"base.{key}": value for key, value in SMALL.items()} if "+" in name else SMALL
        run = aspc.train(make_dataset(200), algo=name, out=tmp_path / "run", **OPTIONS, **settings)
        assert sum(program._cache_size() for program in programs) - before <= 2
        assert METRICS[name] <= run.metrics.keys()
        assert all(np.isfinite(run.metrics[metric]).all() for metric in METRICS[name])
        if "+" in name:
            assert run.metrics["scale"][-1] != algorithms.default(name).initial_scale
    actions = run.policy.act(np.zeros((3, 4)))
    assert actions.shape == (3, 2)
    assert np.all(np.abs(actions) <= 1)


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
    assert code_lines(ast.parse((EXAMPLES / "custom_loop.py").read_text())) <= 25


def test_line_counts_in_the_documents() -> None:
    page = (EXAMPLES.parent / "docs" / "algorithms.md").read_text()
    rows = re.findall(r"^\| \[`(\w+\.py)`\].*\| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for name, lines in rows:
        assert code_lines(ast.parse((EXAMPLES / name).read_text())) == int(lines), name
