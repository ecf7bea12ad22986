"""The command `aspc data`: output, files, warnings and errors."""

from __future__ import annotations

import base64
import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_logs import make_log

from aspc import data, page_parts
from aspc.cli import data as commands
from aspc.cli.data_options import DataOptions
from aspc.data import dataset_page, diagnostics, reward_checks, streaming, writers
from aspc.data.collect import collect
from aspc.data.dataset import Dataset
from aspc.errors import AspcError
from policies import policy_named


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*argv: str) -> None:
    assert commands.main(list(argv)) == 0


def dataset(rows: int = 3_000, **changes: object) -> Dataset:
    return Dataset.from_arrays(**{**make_log(rows=rows), "action_low": -1, "action_high": 1, "name": "mine", **changes})


# ── info ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_info_prints_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    writers.write_hdf5(Path("mine.hdf5"), make_log())
    run("info", "mine.hdf5", "--action-low", "-1", "--action-high", "1")
    out = capsys.readouterr().out
    assert re.search(r"rows\s+60 ", out)
    assert re.search(r"transitions\s+57", out)
    assert re.search(r"episodes\s+6 \(3 ended by terminal, 3 by timeout\)", out)
    assert re.search(r"action bounds\s+\[-1, 1\] in every dimension", out)
    assert "warning: there are only 60 rows." in out


def test_info_takes_maps_bounds_and_strictness(capsys: pytest.CaptureFixture[str]) -> None:
    log = make_log()
    np.savez("other.npz", state=log["observations"], u=log["actions"] * 3, rew=log["rewards"], done=log["terminals"])
    run("info", "other.npz", "--map", "observations=state", "actions=u", "--action-low", "0", "--action-high", "0.5")
    assert "[0, 0.5]" in capsys.readouterr().out  # a bound of 0 is one that was given
    run("info", "other.npz", "--map", "observations=state", "actions=u", "--action-low", "-1", "--action-high", "1")
    assert "actions are outside the bounds" in capsys.readouterr().out
    with pytest.raises(AspcError, match="actions are outside"):
        run("info", "other.npz", "--map", "actions=u", "--action-low", "-1", "--action-high", "1", "--strict")
    with pytest.raises(AspcError, match="--map takes KEY=NAME"):
        run("info", "other.npz", "--map", "state")
    with pytest.raises(AspcError, match=r"--map specifies 'actions' twice\. Join its names with commas: actions=NAME"):
        run("info", "other.npz", "--map", "observations=state", "actions=u", "actions=v")


def test_key_map_is_recorded_as_given() -> None:
    asked = DataOptions(map=("observations=a,b", "actions=u_*"), action_low=(0.0,), env="none")
    assert DataOptions.from_options(asked.options()) == asked
    listed = {"key_map": {"observations": ["a", "b"], "actions": "u_*"}}  # from Python
    assert DataOptions.from_options(listed).map == asked.map


def test_info_writes_a_page_of_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    writers.write_hdf5(Path("a<b>.hdf5"), make_log(rows=500))
    run("info", "a<b>.hdf5", "--plot")
    text = Path("a<b>.html").read_text("utf-8")
    assert "<title>a&lt;b&gt;</title>" in text
    assert "a<b>" not in text
    assert not re.search(r"<(script|link|iframe)|https?://", text)  # one file, nothing from elsewhere
    found = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(found) == 5
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in found)
    assert "page: a<b>.html" in capsys.readouterr().out


@pytest.mark.parametrize(("sizes", "env"), [((1, 1), None), ((4, 2), None), ((60, 20), None), ((4, 2), "maze2d-umaze")])
def test_pages_of_many_sizes(sizes: tuple[int, int], env: str | None) -> None:
    log = make_log(rows=200, observation=sizes[0], action=sizes[1])
    made = Dataset.from_arrays(**log, env=env)
    captions = [caption for caption, _ in dataset_page.draw_pictures(made)]
    assert any("positions in the maze" in caption for caption in captions) == (env is not None)
    assert any("first 12 of 20" in caption for caption in captions) == (sizes[1] == 20)
    drawn = [caption for caption in captions if caption.startswith("Observations")]
    assert len(drawn) == -(-sizes[0] // dataset_page.OBSERVATIONS_PER_FIGURE)


def test_empty_charts_are_not_drawn() -> None:
    """One endless episode of one observation with constant rewards and a constant action."""
    log = make_log(rows=200, observation=1, action=2)
    log["actions"][:, 1] = 7.3
    flags = dict.fromkeys(("terminals", "timeouts"), np.zeros(200))
    made = Dataset.from_arrays(**{**log, "rewards": np.ones(200), **flags})
    captions = [caption for caption, _ in dataset_page.draw_pictures(made)]
    assert [caption.split()[0] for caption in captions] == ["Observations", "Actions"]


def test_every_observation_has_a_histogram_and_a_trace() -> None:
    from matplotlib.figure import Figure

    names = ("temp [°C]", "a$b_{", "flow")
    made = dataset(observation_names=names, action_names=("valve [%]", "fan"))
    figure = Figure()
    dataset_page._draw_observations(figure, made, range(3))
    histograms, traces = figure.axes[::2], figure.axes[1::2]
    assert [axes.get_title(loc="left") for axes in traces] == ["temp", "a$b_{", "flow"]
    assert [axes.get_ylabel() for axes in traces] == ["°C", "", ""]
    for i, (histogram, trace) in enumerate(zip(histograms, traces, strict=True)):
        assert sum(patch.get_height() for patch in histogram.patches) == len(made)
        rows, values = trace.lines[0].get_data()
        kept = ~np.isnan(rows)
        assert rows[kept][0] == 1  # rows count from 1, as in messages
        np.testing.assert_array_equal(values[kept], made.observations[: dataset_page.MAX_TRACE_ROWS, i])
        ends = (made.terminals | made.timeouts)[: dataset_page.MAX_TRACE_ROWS - 1]
        assert np.isnan(values).sum() == ends.sum()  # the line is interrupted where episodes end
    figure = Figure()
    dataset_page._draw_actions(figure, made)
    assert [axes.get_xlabel() for axes in figure.axes] == ["%", ""]


@pytest.mark.parametrize("size", [1, 6, 12])
def test_tick_labels_do_not_overlap(size: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    log = make_log(rows=500, observation=size, action=size)
    log["actions"] *= 1e5
    log["observations"] = 1e5 + log["observations"] / 10
    made = Dataset.from_arrays(**log)
    for draw in (
        dataset_page._draw_episodes,
        dataset_page._draw_actions,
        lambda figure, data: dataset_page._draw_observations(figure, data, range(min(size, 6))),
    ):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        draw(figure, made)
        canvas.draw()
        for axes in figure.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            low, high = axes.get_xlim()
            shown = [box for box, tick in zip(boxes, axes.get_xticks(), strict=False) if low <= tick <= high]
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(shown))


def test_panels_of_actions_have_the_names_of_their_columns() -> None:
    from matplotlib.figure import Figure

    def titles(**names: tuple[str, ...]) -> list[str]:
        figure = Figure()
        dataset_page._draw_actions(figure, dataset(**names))
        return [axes.get_title() for axes in figure.axes]

    assert titles() == ["action 1", "action 2"]
    assert titles(action_names=("valve", "a$b_{")) == ["valve", "a$b_{"]
    assert page_parts.draw_png(
        dataset_page._draw_actions, dataset(action_names=("valve", "a$b_{$"))
    )  # no formula, though it looks like one


def test_principal_components_find_the_widest_plane() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(500, 2))
    observations = np.stack([hidden[:, 0], hidden[:, 1], hidden[:, 0] + hidden[:, 1], hidden[:, 0] * 2], axis=1)
    shown = page_parts.principal_components(observations)
    fit, *_ = np.linalg.lstsq(shown, hidden - hidden.mean(axis=0), rcond=None)
    np.testing.assert_allclose(shown @ fit, hidden - hidden.mean(axis=0), atol=1e-6)


# ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_constants(**names: tuple[str, ...]) -> Dataset:
    log = make_log(rows=3_000)
    log["observations"][:, 1], log["actions"][:, 0] = 7.0, 0.5
    return dataset(**log, **names)


def saturated() -> Dataset:
    return dataset(actions=np.sign(make_log(rows=3_000)["actions"]))


def mistyped(key: str, value: float) -> Dataset:
    log = make_log(rows=3_000)
    log[key].reshape(3_000, -1)[41, -1] = value
    return dataset(**{key: log[key]})


def smooth(missing: bool) -> Dataset:
    """Random walks of 100 steps that start far apart; with `missing`, nothing marks their ends."""
    rng = np.random.default_rng(0)
    walks = rng.normal(size=(30, 1, 3)) * 30 + np.cumsum(rng.normal(size=(30, 100, 3)) * 0.1, axis=1)
    ends = np.arange(3_000) % 100 == 99
    return dataset(observations=walks.reshape(-1, 3), timeouts=ends & (not missing), terminals=np.zeros(3_000))


def followed(columns: slice = slice(None), across: bool = False, going_on: bool = False) -> Dataset:
    """Random walks with next observations, whose columns may be in another order, and which may lead `across` the ends
    of episodes; with `going_on` the walk does so, too."""
    made = smooth(missing=False)
    if going_on:
        walk = np.cumsum(np.random.default_rng(0).normal(size=(3_000, 3)) * 0.1, axis=0)
        made = replace(made, observations=walk.astype(np.float32))
    after = np.concatenate([made.observations[1:], made.observations[-1:]])
    if not (across or going_on):
        after = np.where(made.timeouts[:, None], made.observations + np.float32(0.1), after)
    return replace(made, next_observations=after[:, columns])


def with_value(value: float, rows: int, key: str = "observations", **more: object) -> Dataset:
    """A column between 0 and 100, with another value in some rows."""
    log, rng = make_log(rows=3_000), np.random.default_rng(1)
    column = rng.uniform(0, 100, 3_000)
    column[rng.choice(3_000, rows, replace=False)] = value
    log[key].reshape(3_000, -1)[:, -1] = column
    return Dataset.from_arrays(**log, **more)


def paid(step: float, goal: float, ends: bool = False) -> Dataset:
    """The same reward in each step, another in each hundredth."""
    last = np.arange(3_000) % 100 == 99
    return dataset(rewards=np.where(last, goal, step), terminals=last & ends, timeouts=last & (not ends))


def in_single_rows(flag: str, share: float) -> Dataset:
    marked = np.arange(3_000) < share * 3_000
    return dataset(**{"terminals": np.zeros(3_000), "timeouts": np.zeros(3_000), flag: marked})


UNIFORM = np.random.default_rng(0).uniform(size=3_000)


REPEATED = {key: np.concatenate([array, array[:100]]) for key, array in make_log(rows=3_000).items()}


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (with_constants(), "observation dimension 2 never changes"),
        (with_constants(), "action dimension 1 never changes"),
        (with_constants(observation_names=("a", "b", "c")), r"observation dimension 2 \(b\) never changes"),
        (with_constants(action_names=("u", "v")), r"action dimension 1 \(u\) never changes"),
        (dataset(**REPEATED), "100 of 3,100 rows duplicate"),
        (saturated(), "actions are at a bound: dimension . in 100 %"),
        (mistyped("observations", 1e9), r"observation dimension 3 is 1e\+09 in row 42 \(1 such row\)"),
        (mistyped("rewards", -1e30), r"reward is -1e\+30 in row 42 \(1 such row\)"),
        (dataset(rewards=np.ones(3_000)), "the reward is 1 in every row"),
        (dataset(rewards=-np.arange(3_000) / 1_000), "no reward is above 0: .* --algo iql"),
        (dataset(rewards=-np.arange(3_000) / 1_000, terminals=np.zeros(3_000)), "no reward is .* --reward-shift 3"),
        (
            dataset(rewards=UNIFORM - 0.95, terminals=np.zeros(3_000)),
            r"mostly below 0 \(in 9. % .* --reward-shift 0.95",
        ),
        (paid(-1, 10), r"mostly below 0 \(in 99 % of the rows\): untried actions .* --reward-shift 1\."),
        (paid(-1, 10, ends=True), "mostly below 0 .* --algo iql"),
        (dataset(terminals=np.zeros(3_000), timeouts=np.zeros(3_000)), "no episode ends"),
        (in_single_rows("terminals", 1.0), "every row is terminal, so critics never bootstrap"),
        (in_single_rows("terminals", 0.9), "2,700 of 2,701 episodes have only one row"),
        (in_single_rows("timeouts", 1.0), "3,000 of 3,000 episodes have only one row"),
        (with_value(-999, 1), r"observation dimension 3 is -999 in 1 row, far .* between .* missing value, replace it"),
        (with_value(9_999, 200, observation_names=("a", "b", "c")), r"dimension 3 \(c\) is 9999 in 200 rows"),
        (with_value(-700, 6, "actions", action_names=("u", "v")), r"action dimension 2 \(v\) is -700 in 6 rows"),
        (with_value(-999, 6, "actions"), "is -999 in 6 rows.*guessed action bounds include it: .* --action-low"),
        (with_value(999, 6, "actions"), "is 999 in 6 rows.*guessed action bounds include it: .* --action-high"),
        (with_value(-999, 6, "rewards"), "reward is -999 in 6 rows"),
        (smooth(missing=True), "29 steps are .* first after row 100 of 3,000: episode ends may be missing"),
        (followed(slice(None, None, -1)), "in 100 % of the rows inside episodes, the next observation is not"),
        (followed(across=True), "at 100 % of the timeouts, .* is the first observation of the next episode"),
        (dataset(rows=50), "there are only 50 rows"),
        (dataset(rows=1), "there is only 1 row."),
    ],
)
def test_each_warning_is_given(made: Dataset, says: str) -> None:
    assert any(re.search(says, warning) for warning in diagnostics.find_warnings(made))


def test_valid_data_gives_no_warning() -> None:
    assert diagnostics.find_warnings(dataset()) == []
    assert diagnostics.find_warnings(smooth(missing=False)) == []
    assert diagnostics.find_warnings(followed()) == []
    assert diagnostics.find_warnings(followed(going_on=True)) == []
    assert not any("one row" in text for text in diagnostics.find_warnings(in_single_rows("terminals", 0.0003)))
    stated = diagnostics.find_warnings(with_value(-999, 6, "actions", action_low=-1_000, action_high=100))
    assert not any("guessed" in text for text in stated)


@pytest.mark.parametrize(
    "rewards",
    [
        np.random.default_rng(0).normal(size=3_000),
        np.random.default_rng(0).normal(1.0, 1.5, size=3_000),
        np.random.default_rng(0).standard_t(3, size=3_000) - 0.1,
        np.where(np.arange(3_000) % 100 == 99, 1.0, 0.0),
        np.where(np.arange(3_000) % 100 == 99, 100.0, -1.0),
    ],
)
def test_positive_rewards_give_no_warning(rewards: np.ndarray) -> None:
    assert reward_checks.check_negative_rewards(rewards.astype(np.float32), has_terminals=False) == []


def test_shifted_negative_rewards_are_reported() -> None:
    assert reward_checks.check_negative_rewards(UNIFORM, has_terminals=False) == []
    (said,) = reward_checks.check_negative_rewards(UNIFORM - 1, has_terminals=False, shift=-1.0)
    assert re.search("no reward is above 0: .* --reward-shift [-0e.]", said)


def test_training_checks_its_own_shifted_rewards() -> None:
    from aspc.algorithms.bc import BC
    from aspc.training.prepared_data import warnings_of

    class Climbs(BC):
        climbs_q = True

    assert warnings_of(paid(-1, 10), BC()) == []
    assert (
        warnings_of(paid(-1, 10), Climbs())
        == reward_checks.check_negative_rewards(paid(-1, 10).rewards, has_terminals=False)
        != []
    )
    assert warnings_of(paid(-1, 10), Climbs(reward_shift=1.0)) == []
    (said,) = warnings_of(paid(0, 1), Climbs(reward_shift=-0.5))
    assert said.startswith("rewards are mostly below 0 (in 99 % of the rows)")
    assert said.endswith("train with --reward-shift 0.")


@pytest.mark.parametrize("seed", range(20))
def test_tails_goals_and_switches_are_not_sentinels(seed: int) -> None:
    rng, rows = np.random.default_rng(seed), 20_000
    on = rng.uniform(size=rows) < 0.005
    columns = {
        "normal": rng.normal(size=rows),
        "exponential": rng.exponential(size=rows),
        "rounded": rng.exponential(size=rows).round(1),
        "student": rng.standard_t(3, size=rows),
        "clipped": np.clip(rng.standard_t(3, size=rows), -20, 20),
        "each episode's own": np.repeat(rng.lognormal(size=rows // 100), 100),
        "count": rng.poisson(0.05, size=rows),
        "rarely on": on,
        "half on": rng.integers(0, 2, size=rows),
        "off or hot": np.where(on, 0.0, rng.uniform(190, 200, size=rows)),
    }
    table = np.stack(list(columns.values()), axis=1)
    for rewards in (on, np.where(on, 100.0, rng.uniform(-1, 0, size=rows))):
        ends = np.zeros(rows)
        made = Dataset.from_arrays(table, table, rewards, ends, ends, observation_names=list(columns))
        assert diagnostics._check_outliers(made) == []


# ── list, download, make, convert ───────────────────────────────────────────────────────────────────────────────────


def test_list_marks_downloaded_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    data.load("maze2d-umaze?steps=100")
    run("list")
    out = capsys.readouterr().out
    assert re.search(r"\* maze2d-umaze\n", out)
    assert re.search(r"  maze2d-umaze-clean\n", out)
    assert "D4RL (39)" in out
    assert "antmaze-giant-navigate-singletask-task5-v0" in out
    run("list", "pen-")
    assert "hopper" not in capsys.readouterr().out


def test_download_needs_names_that_can_be_downloaded() -> None:
    with pytest.raises(AspcError, match="did you mean hopper-medium-v2"):
        run("download", "hopper-meduim-v2")
    with pytest.raises(AspcError, match="Name at least one"):
        run("download")


def test_made_datasets_load_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    run("make", "maze2d-umaze-clean", "--steps", "500", "--seed", "3")
    made = data.load("maze2d-umaze-clean.hdf5")
    assert (len(made), made.env) == (500, "maze2d-umaze-clean")
    np.testing.assert_array_equal(made.observations, data.load("maze2d-umaze-clean?steps=500&seed=3").observations)
    with pytest.raises(AspcError, match="already exists"):
        run("make", "maze2d-umaze-clean", "--steps", "500")
    run("make", "maze2d-umaze-clean", "--steps", "500", "--noise", "0.3", "--out", "noisy.hdf5")
    assert not np.array_equal(data.load("noisy.hdf5").actions, made.actions)
    for wrong, says in ((["x"], "Unknown dataset to generate"), (["maze2d-umaze", "--steps", "1"], "at least 2"),
                        (["maze2d-umaze", "--out", "x.npz"], "ends in .hdf5"),
                        (["maze2d-umaze", "--noise", "-1"], "at least 0, not -1")):  # fmt: skip
        with pytest.raises(AspcError, match=says):
            run("make", *wrong)


def test_make_generates_ogbench_pointmaze_data() -> None:
    pytest.importorskip("ogbench")
    run("make", "pointmaze-medium", "--steps", "3003", "--out", "p.npz")
    name = "pointmaze-medium-navigate-singletask-task1-v0"
    walked = data.load(name, path=Path("p.npz"))
    assert (len(walked), walked.observation_size) == (3_000, 2)  # three trajectories, less their last rows
    assert walked.episode_lengths.max() <= 1_000
    with np.load("p.npz") as stored:
        steps = np.linalg.norm(np.diff(stored["observations"], axis=0), axis=1)[stored["terminals"][:-1] == 0]
        assert np.quantile(steps, 0.99) < 0.5  # 0.2 m in each direction at most, but for a knock on a wall
        assert stored["observations"].std(axis=0).min() > 2.0  # it gets about


def test_convert_keeps_everything(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"observation_names": ("x", "y", "spin"), "action_names": ("torque",)}
    actions = make_log(rows=3_000)["actions"][:, :1]
    made = dataset(env="Pendulum-v1", actions=actions, ref_min=1.0, ref_max=2.0, action_low=-5, action_high=5, **names)
    writers.write_hdf5(Path("a.hdf5"), writers.dataset_arrays(made), writers.dataset_metadata(made))
    run("convert", "a.hdf5", "b.npz")
    run("convert", "b.npz", "c.hdf5")
    for back in (data.load("b.npz"), data.load("c.hdf5")):
        for key in ("observations", "actions", "rewards", "terminals", "timeouts", "action_low", "action_high"):
            np.testing.assert_array_equal(getattr(back, key), getattr(made, key), err_msg=key)
        assert (back.env, back.ref_min, back.ref_max) == ("Pendulum-v1", 1.0, 2.0)
        assert (back.observation_names, back.action_names) == (made.observation_names, made.action_names)
    run("convert", "a.hdf5", "packed")
    packed = streaming.StreamingDataset.open("packed")
    assert (len(packed), packed.env) == (len(made.transitions().rewards), "Pendulum-v1")
    np.testing.assert_array_equal(packed.action_high, made.action_high)
    run("convert", "b.npz", "packed2")
    for folder in ("packed", "packed2"):  # of an HDF5 file, slab by slab, and of a dataset
        packed = streaming.StreamingDataset.open(folder)
        assert (packed.observation_names, packed.action_names) == (made.observation_names, made.action_names)
        capsys.readouterr()
        run("info", folder)
        out = capsys.readouterr().out
        assert "packed, to be streamed" in out
        assert re.search(
            r"observation +3 numbers: x, y, spin\naction +1 number: torque\naction bounds +\[-5, 5\] in", out
        )
    with pytest.raises(AspcError, match="pass the original data"):
        run("info", "packed", "--action-high", "3")
    for target, says in (("b.npz", "already exists"), ("x.csv", "datasets as .csv"), ("packed", "already exists")):
        with pytest.raises(AspcError, match=says):
            run("convert", "a.hdf5", target)


@pytest.mark.parametrize("target", ["cut.npz", "cut.hdf5", "cut"])
def test_convert_notes_clipped_actions(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = dataset()
    writers.write_npz(Path("a.npz"), writers.dataset_arrays(made), {})
    run("convert", "a.npz", target, "--action-low", "-0.1", "--action-high", "0.1")
    assert "were clipped" in capsys.readouterr().out


def test_a_page_never_replaces_another_kind_of_file() -> None:
    writers.write_npz(Path("a.npz"), writers.dataset_arrays(dataset()), {})
    with pytest.raises(AspcError, match=r"ends in \.html"):
        run("info", "a.npz", "--page", "a.npz")


def test_a_file_cannot_name_a_module_to_import() -> None:
    writers.write_hdf5(Path("evil.hdf5"), make_log(), {"env": "os:Evil-v0", "action_low": [-1, -1]})
    assert data.load("evil.hdf5").env is None
    writers.write_hdf5(Path("junk.hdf5"), make_log(), {"action_low": "junk"})
    assert len(data.load("junk.hdf5")) == 60


# ── collect ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_collect_rolls_a_random_policy(capsys: pytest.CaptureFixture[str]) -> None:
    run("collect", "--env", "maze2d-umaze", "--policy", "random", "--steps", "700", "--out", "r.hdf5")
    made = data.load("r.hdf5")
    assert made.env == "maze2d-umaze"
    np.testing.assert_array_equal(np.flatnonzero(made.timeouts), [299, 599, 699])
    assert made.next_observations is not None
    np.testing.assert_array_equal(made.next_observations[:299], made.observations[1:300])
    assert "written: r.hdf5" in capsys.readouterr().out


@pytest.mark.parametrize("algo", ["fql", "diffusion_ql"])
def test_collect_samples_at_every_step(algo: str) -> None:
    policy = policy_named(algo, obs=4, act=2)
    policy.save("policy")
    rolled, again, other = (collect("maze2d-umaze", "policy", 20, seed=seed) for seed in (0, 0, 1))
    same_noise = np.clip([policy.act(observation, 0) for observation in rolled.observations], -1, 1)
    assert np.isclose(rolled.actions, same_noise).all(axis=1).sum() <= 1
    np.testing.assert_array_equal(rolled.actions, again.actions)
    assert not np.array_equal(rolled.actions, other.actions)


def onnx_policy(path: Path, observation: int, action: int) -> np.ndarray:
    """A linear policy as an ONNX file."""
    onnx = pytest.importorskip("onnx")
    weights = np.random.default_rng(0).normal(size=(observation, action)).astype(np.float32) * 0.1
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["obs", "w"], ["action"])],
        "policy",
        [onnx.helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, ["batch", observation])],
        [onnx.helper.make_tensor_value_info("action", onnx.TensorProto.FLOAT, ["batch", action])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return weights


def test_collect_rolls_an_onnx_policy_with_noise() -> None:
    weights = onnx_policy(Path("p.onnx"), 4, 2)
    run("collect", "--env", "maze2d-umaze", "--policy", "p.onnx", "--steps", "400", "--out", "clean.hdf5")
    clean = data.load("clean.hdf5")
    np.testing.assert_allclose(clean.actions, np.clip(clean.observations @ weights, -1, 1), atol=1e-5)
    run("collect", "--env", "maze2d-umaze", "--policy", "p.onnx", "--steps", "400", "--noise", "0.3", "--out", "n.hdf5")
    noisy = data.load("n.hdf5")
    difference = noisy.actions - noisy.observations @ weights
    assert 0.2 < difference[np.abs(noisy.actions) < 1].std() < 0.35


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--env", "maze2d-umaze", "--policy", "wrong.onnx"], "takes observations of size 3"),
        (["--env", "maze2d-umaze", "--policy", "absent.onnx"], "There is no file"),
        (["--env", "maze2d-umaze", "--policy", "junk.onnx"], "not a valid ONNX network"),
        (["--env", "maze2d-umaze", "--policy", "nowhere"], "no policy"),
        (["--env", "maze2d-umaze", "--policy", "random", "--steps", "1"], "at least 2 steps"),
        (["--env", "maze2d-umaze", "--policy", "random", "--noise", "-1"], "must be at least 0"),
    ],
)
def test_collect_rejects_invalid_arguments(argv: list[str], says: str) -> None:
    onnx_policy(Path("wrong.onnx"), 3, 2)
    Path("junk.onnx").write_bytes(b"junk")
    with pytest.raises(AspcError, match=says):
        run("collect", *argv, "--out", "x.hdf5")
    assert not Path("x.hdf5").exists()


def test_errors_of_the_command_line_are_one_sentence_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "junk.hdf5").write_bytes(b"junk" * 100)
    done = subprocess.run(
        [sys.executable, "-m", "aspc", "data", "info", "junk.hdf5"],
        capture_output=True, text=True, timeout=600, env={**os.environ}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "junk.hdf5" in done.stderr


LIGHT_CORE = """
import sys
for name in ("mujoco", "gymnasium_robotics", "ogbench", "minari", "pyarrow", "pandas", "onnx", "onnxruntime", "jax"):
    sys.modules[name] = None  # importing it is an error
from aspc import envs
from aspc.cli import data as commands
from aspc.data import load
commands.main(["info", "maze2d-umaze?steps=2000", "--plot"])
commands.main(["collect", "--env", "maze2d-large", "--policy", "random", "--steps", "100", "--out", "r.hdf5"])
commands.main(["convert", "r.hdf5", "packed"])
load("r.hdf5").transitions(n_step=3)
env = envs.make_env("maze2d-medium-v1")
env.reset(seed=0)
env.step(env.action_space.sample())
"""


def test_the_mazes_need_no_extra_and_no_jax() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LIGHT_CORE], check=True, timeout=600, capture_output=True)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("hopper-medium-v2", "mujoco"),
        ("pen-human-v1", "robotics"),
        ("antmaze-umaze-v2", "ogbench"),
        ("antmaze-large-navigate-singletask-task1-v0", "ogbench"),
        ("minari:D4RL/pen/human-v2", "minari"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: str, extra: str) -> None:
    from aspc import envs

    for module in ("mujoco", "gymnasium_robotics", "ogbench", "ogbench.locomaze.ant", "minari"):
        monkeypatch.setitem(sys.modules, module, None)
    # Gymnasium remembers a MuJoCo that it has found
    for module in [m for m in sys.modules if m.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(AspcError, match=rf"pip install 'aspc\[{extra}\]'"):
        envs.make_env(name)
