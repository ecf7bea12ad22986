"""What a step costs is guarded by counts: seconds belong to the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aspc.__main__ import main
from aspc.lab.speed.measure import Prepared
from aspc.lab.speed.profile import PARTS, parts_by_instruction, profile

SMALL = ["--obs-dim", "3", "--act-dim", "2", "--batch", "8", "--steps", "40"]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return Prepared("aspc", 3, 2, 8, 1, 40, actor_hidden_dim=16, critic_hidden_dim=16)


def test_matrix_products_of_a_step(prepared: Prepared):
    """Critic step: π'(s') 3, Q'(s', a') 4, Q(s, a) 4, its gradients 4 + 3. Actor step, every second: π(s) 3,
    Q(s, π(s)) 4, back through it 4, the actor's gradients 3 + 2. The twin critics are one product."""
    # The scale's update, every 20th step: 25 more, for the tangent of the actor's step, and what judges the step.
    assert sum(prepared.products().values()) == pytest.approx(18 + 16 / 2 + 25 / 20)


def test_instructions_of_the_compiled_step(prepared: Prepared):
    """What the compiler could not merge. Four steps are written out: a cycle of two in the inner loop, and a cycle with
    the scale's update; then there is the drawing of random numbers. It was 911 with the pinned JAX."""
    lines = (prepared.program.as_text() or "").splitlines()
    assert sum(" fusion(" in line or " dot(" in line or " custom-call(" in line for line in lines) <= 960


def test_a_profile_names_every_part(prepared: Prepared):
    seen = profile(prepared)
    assert sum(part.share for part in seen.parts) == pytest.approx(1)
    assert {part.part for part in seen.parts} >= set(PARTS) - {"targets"}
    assert seen.kernels_per_step is None  # no GPU here


def test_an_instruction_belongs_to_the_innermost_part_that_counts():
    hlo = """
  %dot.1 = f32[2]{0} dot(%a, %b), metadata={op_name="jit(run_blocks)/while/body/critic/vmap()/dot_general"}
  ROOT add_fusion.2 = f32[2]{0} fusion(%a), kind=kLoop, metadata={op_name="jit(f)/while/body/critic/optimiser/add"}
  %copy.3 = f32[2]{0} copy(%a), metadata={op_name="jit(f)/while/body/critical/add"}
"""
    assert parts_by_instruction(hlo) == {"dot_1": "critic", "add_fusion_2": "optimiser"}


def test_compare_and_sweep_save_and_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table, figure = tmp_path / "compare.json", tmp_path / "compare.png"
    assert main(["speed", *SMALL, "--compare", "bc,bc", "--save", str(table), "--plot", str(figure)]) == 0
    rows = json.loads(table.read_text())
    assert [row["algo"] for row in rows] == ["bc", "bc"]
    assert rows[0]["relative_time"] == 1
    assert figure.stat().st_size > 5_000
    assert "time over the first's" in capsys.readouterr().out

    figure = tmp_path / "sweep.svg"
    assert main(["speed", *SMALL, "--algo", "bc", "--sweep-seeds", "1,2", "--json", "--plot", str(figure)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seeds"] for row in rows] == [1, 2]
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--profile", "--compare", "bc,aspc"], "one of --profile"),
        (["--plot", "x.png"], "give --compare or --sweep-seeds"),
        (["--sweep-seeds", "1,two"], "whole numbers"),
        (["--save", "table.txt"], "ends in .json"),
        (["--save", "/proc/none/table.json"], "choose another place"),
        (["--compare", "bc,bc", "--plot", "x.txt"], "ends in .png or .svg"),
    ],
)
def test_what_cannot_be_measured_is_said(options: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(["speed", *options]) == 2
    assert says in capsys.readouterr().err
