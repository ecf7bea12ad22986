"""Selection of runs, names, curves and styles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra [report] is not installed")
pytest.importorskip("rliable", reason="the extra [report] is not installed")

from synthetic import D4RL, MAIN, Variant, make, read_view

from aspc import algorithms
from aspc.algorithm_colors import ALGORITHM_COLORS, CONTROLS, algorithm_color
from aspc.errors import AspcError
from aspc.lab import results
from aspc.lab.paper_tables import domain_of
from aspc.lab.paper_tables import tables as paper_tables
from aspc.lab.report import content, curves, page_data, runtime
from aspc.lab.report.datasets import quality_of, sort_datasets, task_of
from aspc.lab.report.methods import algo_of, method, method_of, settings_of
from aspc.lab.report.styles import QUALITY_COLORS, SPARE_COLORS, TASK_COLORS, assign_styles, mix
from aspc.lab.report.view import build_view

HOPPER, CHEETAH, PEN = "hopper-medium-v2", "halfcheetah-medium-v2", "pen-human-v1"


def test_task_quality_and_order_of_datasets() -> None:
    assert task_of("hopper-medium-replay-v2") == "hopper"
    assert task_of("antmaze-large-navigate-singletask-task1-v0") == "antmaze-large-navigate-singletask-task1"
    assert task_of("my-plant") == "my-plant"
    assert quality_of("hopper-medium-replay-v2") == quality_of("walker2d-medium-replay") == "medium-replay"
    assert quality_of("pen-expert-v1") is None
    assert sort_datasets(["zzz", PEN, HOPPER, CHEETAH, "aaa"]) == [CHEETAH, HOPPER, PEN, "aaa", "zzz"]


def test_method_is_the_algorithm_and_its_defining_settings() -> None:
    recorded = '{"base.alpha": 10.0, "scale_target": 7.3, "batch_size": 64}'
    assert method_of("aspc", settings_of(recorded)) == method("aspc", alpha=10.0)
    assert algo_of("aspc", recorded, '{"bc": "advantage_weighted"}') == "aspc_aw"
    assert algo_of("td3_bc", '{"bc": "advantage_weighted"}', "{}") == "td3_bc_aw"
    assert algo_of("aspc_aw", "{}", '{"bc": "advantage_weighted"}') == "aspc_aw"
    assert algo_of("aspc", "{}", "{}") == "aspc"
    assert method("aspc_aw").name == "ASPC+AW"
    assert method("aspc", alpha=10.0).name == "ASPC, alpha0 = 10"
    assert method_of("fql", {"alpha": 3.0}) == method("fql")  # FQL's alpha is a tuned setting
    assert method("iql+aspc").name == "IQL+ASPC"
    assert method("aspc", critic_hidden_layers=2, critic_layer_norm=False).name == "ASPC, without RC"


def test_tuned_runs_represent_a_method_but_modified_ones_do_not(tmp_path: Path) -> None:
    searched, tuned = Variant("wider", "aspc", batch_size=1024), Variant("ReBRAC, tuned", "rebrac", beta1=0.05)
    make(tmp_path, "s", [searched, Variant("ASPC", "aspc"), tuned, Variant("ReBRAC", "rebrac")], [HOPPER], seeds=1)
    view = read_view(tmp_path)
    assert view.runs_of(method("aspc"))["settings"].tolist() == ["{}"]
    assert "beta1" in view.runs_of(method("rebrac"))["settings"].item()


def test_tuned_and_plain_seeds_are_not_mixed(tmp_path: Path) -> None:
    make(tmp_path, "s", [Variant("ReBRAC", "rebrac")], [HOPPER], seeds=4)
    make(tmp_path, "s", [Variant("ReBRAC, tuned", "rebrac", beta1=0.05)], [HOPPER], seeds=2)
    found = read_view(tmp_path).runs_of(method("rebrac"))
    assert found["seed"].tolist() == [0, 1]
    assert all("beta1" in settings for settings in found["settings"])


def test_seeds_of_different_settings_are_not_mixed(tmp_path: Path) -> None:
    """Not even without plain runs; the settings with more seeds win over newer ones."""
    for settings, seeds, end in (({"discount": 0.995}, 4, 30.0), ({"actor_lr": 1e-4}, 2, 90.0)):
        variant = Variant("ASPC", "aspc", **settings)
        make(tmp_path, "s", [variant], [HOPPER], seeds=seeds, points=3, score=lambda *_, end=end: end, noise=0)
    view = read_view(tmp_path)
    for found in (view.runs_of(method("aspc")), view.suite_runs("s"), view.comparable_suite_runs("s")):
        assert found["last"].tolist() == pytest.approx([30.0] * 4)


@pytest.mark.parametrize("algo", ["aspc", "td3_bc", "wpc"])
def test_modified_runs_never_replace_plain_runs(tmp_path: Path, algo: str) -> None:
    """Even if they are longer, in comparisons, and under the same label."""
    label, changed, other = method(algo).name, {"discount": 0.995}, Variant("IQL", "iql")
    make(tmp_path, "s", [Variant(label, algo), other], [HOPPER], seeds=1, points=3, steps=300_000)
    make(tmp_path, "s", [Variant(label, algo, **changed), other], [HOPPER, PEN], seeds=1, points=3)
    view = read_view(tmp_path)
    plain_on_hopper = {HOPPER: "{}", PEN: '{"discount": 0.995}'}  # the only runs on pen
    matched = view.comparable_runs(method(algo), method("iql"))
    for runs in (view.runs_of(method(algo)), matched[0], view.suite_runs("s").query("label == @label")):
        assert dict(zip(runs["dataset"], runs["settings"], strict=True)) == plain_on_hopper
    assert dict(zip(matched[1]["dataset"], matched[1]["steps"], strict=True)) == {HOPPER: 300_000, PEN: 1_000_000}
    speeds = [s for s in runtime.measure_runtimes(view) if (s.series, s.dataset) == (label, HOPPER)]
    assert [s.runs for s in speeds] == [1]


def test_malformed_settings_are_ignored() -> None:
    for text in (None, "", "[1]", "{", "[" * 5000, '{"k_alpha": [1]}'):
        assert settings_of(text) == {}


def test_an_algorithm_has_one_color() -> None:
    series = {"IQL, tuned": "iql", "ASPC": "aspc", "IQL": "iql", "IQL+ASPC": "iql+aspc", "mine": "my_own"}
    found = assign_styles(series)
    assert list(found) == list(series)
    assert found["ASPC"] == (ALGORITHM_COLORS["aspc"], "solid")
    assert found["IQL"] == (ALGORITHM_COLORS["iql"], "solid")
    assert found["IQL+ASPC"] == (ALGORITHM_COLORS["iql"], "dash")
    assert found["IQL, tuned"].color == mix(ALGORITHM_COLORS["iql"], "#000000", 0.35)  # the dashed one is taken
    assert len(set(found.values())) == len(series)
    assert found["mine"].color == SPARE_COLORS[0]
    assert assign_styles({"IQL, tuned": "iql"})["IQL, tuned"] == found["IQL"]  # nothing else has its color


def test_every_algorithm_has_a_color() -> None:
    builtin = [name for name in algorithms.names() if algorithms.default(name).__module__.startswith("aspc.")]
    assert not [name for name in builtin if algorithm_color(name) is None]
    assert algorithm_color("discrete_iql+aspc") == algorithm_color("iql") == ALGORITHM_COLORS["iql"]
    assert algorithm_color("aspc_aw") == algorithm_color("aspc")
    assert algorithm_color("my_own") is None
    assert set(CONTROLS.values()) <= set(ALGORITHM_COLORS)


def test_colors_are_distinct() -> None:
    colors = np.array([oklab(color) for color in (*ALGORITHM_COLORS.values(), *SPARE_COLORS)])
    apart = np.linalg.norm(colors[:, None] - colors[None], axis=-1) + np.eye(len(colors))
    assert apart.min() > 0.08
    # In charts of one algorithm, colors stand for datasets, so they are no algorithm's.
    assert not {*QUALITY_COLORS.values(), *TASK_COLORS} & set(ALGORITHM_COLORS.values())
    assert mix("#804020", "#ffffff", 0.5) == "#c0a090"


def test_dozens_of_series_have_distinct_styles() -> None:
    series = {"ASPC": "aspc", "IQL": "iql", "IQL+ASPC": "iql+aspc"}
    series |= {f"ASPC, k_alpha = {k}": "aspc" for k in range(11, 71)}
    found = assign_styles(series)
    assert len(set(found.values())) == len(series)
    own = {mix(ALGORITHM_COLORS["aspc"], *other) for other in (("#000000", 0.35), ("#ffffff", 0.35))}
    shown = [found[f"ASPC, k_alpha = {k}"].color for k in range(11, 27)]
    assert set(shown) == {ALGORITHM_COLORS["aspc"], *own}  # shades of its color, as long as styles are distinct


def oklab(color: str) -> np.ndarray:
    """Return a color in Ottosson's OKLab space, in which distance measures perceived difference."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_lms = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ linear)


def test_configs_are_stored_as_differences() -> None:
    configs = [page_data.flatten({"a": 1, "b": {"c": 2, "d": i}}) for i in range(5)]
    common = page_data.most_common_values(configs)
    assert common == {"a": 1, "b.c": 2}
    assert page_data.intern_texts(["x", None, "x"]) == {"at": [0, 1, 0], "of": ["x", None]}


def test_curves_are_downsampled_means_and_deviations(tmp_path: Path) -> None:
    make(tmp_path, "own", MAIN[-1:], [HOPPER], seeds=3, points=500)
    found = results.read(tmp_path)
    (score,) = curves.select_curves(curves.build_curves(build_view(found)), "score", "ASPC", HOPPER)
    assert len(score.steps) <= curves.MAX_POINTS
    assert (score.steps[0], score.steps[-1]) == (found.curves["step"].min(), found.curves["step"].max())
    last = found.curves[found.curves["step"] == 1_000_000]["score"]
    assert score.mean[-1] == pytest.approx(last.mean())
    assert score.std[-1] == pytest.approx(last.std())
    assert score.n == 3
    assert curves.points_per_curve(10) == 200
    assert curves.points_per_curve(5000) == 80


def test_scale_has_a_panel_per_task_and_a_line_per_dataset(tmp_path: Path) -> None:
    ogbench, own = paper_tables()["ogbench"].rows, [f"plant-{i}" for i in range(12)]
    others = [name for name in D4RL if domain_of(name) != "MuJoCo"]
    make(tmp_path, "own", MAIN[-1:], [HOPPER, *others, *ogbench, *own], seeds=1, points=3)
    found = content.build(results.read(tmp_path)).scale_by_task()
    assert {task: len(lines) for task, lines in found.items()} == {
        "maze2d": 3, "antmaze": 6, "pen": 3, "door": 3, "hammer": 3, "relocate": 3,
        "antmaze-large-navigate-singletask": 5, "antmaze-giant-navigate-singletask": 5, "other datasets": 12,
    }  # fmt: skip
    assert [line.name for line in found["pen"]] == ["human-v1", "cloned-v1", "expert-v1"]
    for lines in found.values():
        assert len({line.style for line in lines}) == len(lines)
        assert len({line.style.color for line in lines}) == min(len(lines), len(TASK_COLORS))


def test_no_finished_run_is_an_error(tmp_path: Path) -> None:
    row = {"run_id": "a", "suite": "s", "variant": "v", "algo": "aspc", "dataset": "d", "seed": 0, "steps": 1}
    results.write_part(tmp_path, "p", [{**row, "status": "failed", "error": "no memory"}], [])
    with pytest.raises(AspcError, match="no run in these results has finished"):
        content.build(results.read(tmp_path))
