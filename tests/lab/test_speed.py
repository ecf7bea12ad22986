"""Speed measurement, and the cost of a step in counts: timings belong to the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aspc.__main__ import main
from aspc.lab.speed.measure import SpeedBenchmark
from aspc.lab.speed.profile import PARTS, parts_by_instruction, profile

SMALL = ["--obs-dim", "3", "--act-dim", "2", "--batch", "8", "--steps", "40"]


@pytest.fixture(scope="module")
def benchmark() -> SpeedBenchmark:
    return SpeedBenchmark("aspc", 3, 2, 8, 1, 40, actor_hidden_dim=16, critic_hidden_dim=16)


def test_matrix_products_of_a_step(benchmark: SpeedBenchmark):
    """Critic step: π'(s') 3, Q'(s', a') 4, Q(s, a) 4, its gradients 4 + 3. Actor step, every second: π(s) 3,
    Q(s, π(s)) 4, back through it 4, the actor's gradients 3 + 2. The twin critics are one product. Scale update, every
    20th step: 25 more, for the tangent of the actor's step and the outer losses."""
    assert sum(benchmark.count_products().values()) == pytest.approx(18 + 16 / 2 + 25 / 20)


def test_instructions_of_the_compiled_step(benchmark: SpeedBenchmark):
    """Count the instructions that the compiler did not fuse: four unrolled steps (a cycle of two in the inner loop, and
    a cycle with the scale's update) and the random draws. The pinned JAX gives 911."""
    lines = (benchmark.program.as_text() or "").splitlines()
    assert sum(" fusion(" in line or " dot(" in line or " custom-call(" in line for line in lines) <= 960


def test_profile_names_every_part(benchmark: SpeedBenchmark):
    result = profile(benchmark)
    assert sum(part.share for part in result.parts) == pytest.approx(1)
    assert {part.part for part in result.parts} >= set(PARTS) - {"targets"}
    assert result.kernels_per_step is None  # no GPU here


def test_algorithms_for_choices_are_timed_on_a_choice():
    benchmark = SpeedBenchmark("discrete_cql", 3, 4, 8, 1, 40, hidden_dim=16)
    assert benchmark.loop.spec.factors == (4,)
    assert benchmark.describe()["actions"] == "one choice"
    actions = np.asarray(benchmark.table[:, 3:7])
    np.testing.assert_array_equal(np.sort(actions, axis=1), np.tile([-1, -1, -1, 1], (len(actions), 1)))


def test_instructions_belong_to_the_innermost_part():
    hlo = """
  %dot.1 = f32[2]{0} dot(%a, %b), metadata={op_name="jit(run_blocks)/while/body/critic/vmap()/dot_general"}
  ROOT add_fusion.2 = f32[2]{0} fusion(%a), kind=kLoop, metadata={op_name="jit(f)/while/body/critic/optimizer/add"}
  %copy.3 = f32[2]{0} copy(%a), metadata={op_name="jit(f)/while/body/critical/add"}
"""
    assert parts_by_instruction(hlo) == {"dot_1": "critic", "add_fusion_2": "optimizer"}


def test_compare_and_sweep_save_and_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table, figure = tmp_path / "compare.json", tmp_path / "compare.png"
    assert main(["speed", *SMALL, "--compare", "bc,bc", "--save", str(table), "--plot", str(figure)]) == 0
    rows = json.loads(table.read_text())
    assert [row["algo"] for row in rows] == ["bc", "bc"]
    assert rows[0]["relative_time"] == 1
    assert figure.stat().st_size > 5_000
    assert "relative time" in capsys.readouterr().out

    figure = tmp_path / "sweep.svg"
    assert main(["speed", *SMALL, "--algo", "bc", "--sweep-seeds", "1,2", "--json", "--plot", str(figure)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seeds"] for row in rows] == [1, 2]
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "--compare", "bc,aspc"], "only one of --profile"),
        (["--plot", "x.png"], "--plot requires --compare or --sweep-seeds"),
        (["--sweep-seeds", "1,two"], "comma-separated integers"),
        (["--save", "table.txt"], "ends in .json"),
        (["--save", "/proc/none/table.json"], "Choose another path"),
        (["--compare", "bc,bc", "--plot", "x.txt"], "ends in .png or .svg"),
    ],
)
def test_invalid_options_are_errors(options: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["speed", *options]) == 2
    assert message in capsys.readouterr().err
