"""The command line end to end: help, mistakes and the main commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import registries
from aspc import algorithms
from aspc.__main__ import COMMANDS, main
from aspc.algorithms import registry
from aspc.cli.shared import final_scale, last_option_value
from aspc.training.hyperparameters import all_field_names
from aspc.training.run import recorded_algorithm
from aspc.training.run_folder import Run
from registries import number_names
from tiny import make_dataset

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = ["--actor-hidden-dim", "16", "--critic-hidden-dim", "16", "--batch-size", "16", "--log-every", "40"]
BRIEF = ["--steps", "80", "--env", "none", "--quiet", "--no-tensorboard"]
QUICK = [*SMALL, *BRIEF]


def write_hdf5(path, **changes):
    """Write a file in D4RL's layout; a change of None omits the key."""
    data = make_dataset()
    arrays = {k: getattr(data, k) for k in ("observations", "actions", "rewards", "terminals", "timeouts")} | changes
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file.create_dataset(name, data=array)
    return str(path)


def rejected(capsys, argv):
    """Check that a command exits with code 2, without a traceback, and return its message."""
    code = main(argv)
    out = capsys.readouterr()
    assert code == 2, out
    assert "Traceback" not in out.err + out.out
    return out.err + out.out


def test_import_and_help_load_neither_jax_nor_an_extra():
    heavy = ["jax", "mujoco", "gymnasium_robotics", "ogbench", "minari", "onnx", "pandas", "pyarrow", "matplotlib"]
    script = (
        "import sys, aspc, aspc.__main__; aspc.__main__.main(['--help']);"
        f"sys.exit(str([m for m in {heavy!r} if m in sys.modules]) if any(m in sys.modules for m in {heavy!r}) else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


def test_acting_does_not_import_jax(tmp_path):
    from aspc.policy import Policy

    arrays = {"layers.0.weight": np.eye(3, dtype=np.float32), "layers.0.bias": np.zeros(3, np.float32)}
    settings = {"activation": "relu", "output": "tanh"}
    ones = np.ones(3, np.float32)
    Policy("deterministic", arrays, settings, 0 * ones, ones, -ones, ones).save(tmp_path / "p")
    script = (
        "import sys, aspc, numpy as np; a = aspc.load_policy(sys.argv[1]).act(np.array([0., 1., -9.]));"
        "assert np.allclose(a, np.tanh([0., 1., -9.])), a; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "p")], check=False).returncode == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "data"])
def test_every_command_has_a_help_page(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    _, description, *_ = capsys.readouterr().out.split("\n\n")
    assert description[0].isalpha()  # a sentence, not yet the options


LIGHT_COMMANDS = ["eval", "data info", "assess", "fqe", "inspect", "export", "finetune", "verify-run", "bench"]


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_most_help_pages_do_not_import_jax(command, flag):
    script = (
        "import sys\nfrom aspc.__main__ import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    words = [sys.executable, "-c", script, *command.split(), flag]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_train_resume_and_evaluate_from_a_file(tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    assert main(["train", path, "--algo", "td3_bc", "--out", str(tmp_path / "run"), *QUICK]) == 0
    out = capsys.readouterr().out
    assert "curves.png" in out
    assert "seed0" in out
    assert "behavior data" in out
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "120"]) == 0
    assert "keep the original horizon" in capsys.readouterr().err
    assert "No environment is recorded in" in rejected(capsys, ["eval", str(tmp_path / "run")])
    assert "only --steps, --env and --dataset" in rejected(
        capsys, ["train", "--resume", str(tmp_path / "run"), "--alpha", "3"]
    )


def test_run_in_a_maze_can_be_evaluated_again(tmp_path, capsys):
    pytest.importorskip("mujoco", reason="the extra `mujoco` is not installed")
    options = [*SMALL, "--steps", "80", "--eval-every", "40", "--eval-episodes", "2", "--out", str(tmp_path / "run")]
    assert main(["train", "maze2d-umaze?steps=2000", *options]) == 0
    assert "score" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run"), "--episodes", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["episodes"] == 3
    assert 0 <= row["success_rate"] <= 1
    alone = ["eval", str(tmp_path / "run" / "policy" / "seed0")]  # as written by aspc bench
    assert "pass one with --env" in rejected(capsys, alone)
    assert main([*alone, "--env", "maze2d-umaze", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [row]


def test_verify_detects_a_changed_trace(tmp_path, capsys):
    assert main(["verify", str(GOLDEN / "td3_bc.npz")]) == 0
    assert "passes" in capsys.readouterr().out
    with np.load(GOLDEN / "td3_bc.npz") as file:
        arrays = dict(file)
    arrays["out/critic_loss"] = arrays["out/critic_loss"] * (1 + 1e-5)
    np.savez(tmp_path / "changed.npz", **arrays)
    assert main(["verify", str(tmp_path / "changed.npz")]) == 1
    assert "out/critic_loss" in capsys.readouterr().out


def test_speed_prints_json(capsys):
    assert main(["speed", "--obs-dim", "3", "--act-dim", "2", "--batch", "8", "--steps", "40", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps_per_second"] > 0
    assert result["share_of_matmul_bound"] > 0
    # By hand: critic targets, twin critics forward and backward, and the actor on every second step.
    assert result["flops_per_step"] > 2 * 8 * 256 * 256 * 20


def nan_at(key, row):
    arrays = {k: np.array(getattr(make_dataset(), k)) for k in ("observations", "actions", "rewards")}
    arrays[key][row] = np.nan
    return {key: arrays[key]}


BAD_FILES = {
    "flat observations": ({"observations": np.zeros(600)}, "observations"),
    "lengths differ": ({"rewards": np.zeros(599)}, "599"),
    "NaN in rewards": (nan_at("rewards", 17), "row 18 of 600"),
    "NaN in observations": (nan_at("observations", 123), "row 124 of 600"),
    "discrete actions": ({"actions": np.zeros(600, int)}, "continuous"),
    "no rewards": ({"rewards": None}, "rewards"),
    "empty": (
        {
            "observations": np.zeros((0, 4)),
            "actions": np.zeros((0, 2)),
            "rewards": np.zeros(0),
            "terminals": np.zeros(0, bool),
            "timeouts": np.zeros(0, bool),
        },
        "",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_invalid_files_give_one_sentence(case, tmp_path, capsys):
    changes, word = BAD_FILES[case]
    path = write_hdf5(tmp_path / "bad.hdf5", **changes)
    message = rejected(capsys, ["train", path, "--out", str(tmp_path / "run"), *QUICK])
    assert word in message
    assert len(message.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_damaged_and_missing_files_give_one_sentence(tmp_path, capsys):
    whole = Path(write_hdf5(tmp_path / "whole.hdf5")).read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.hdf5").write_text("not an HDF5 file")
    for name in ("cut.hdf5", "text.hdf5", "absent.hdf5"):
        message = rejected(capsys, ["train", str(tmp_path / name), *QUICK])
        assert len(message.strip().splitlines()) == 1


def test_unknown_names_suggest_the_nearest(capsys):
    assert "td3_bc" in rejected(capsys, ["train", "--algo", "td3bc"])
    assert "maze2d-umaze" in rejected(capsys, ["train", "maze2d-umase"])
    assert "train" in rejected(capsys, ["trian"])
    rejected(capsys, ["train", "--setps", "3"])
    assert "seeds" in rejected(capsys, ["train", "--seeds", "1", "1"])
    assert "at least 1" in rejected(capsys, ["train", "--steps", "0"])
    rejected(capsys, ["verify", "nothing.npz"])
    rejected(capsys, ["eval", "nowhere"])


def test_actions_beyond_the_bounds_are_counted(tmp_path, capsys):
    actions = np.array(make_dataset().actions)
    actions[:5] = 1.7
    path = write_hdf5(tmp_path / "hopper.hdf5", actions=actions)
    from aspc.data import load

    data = load(path, action_low=[-1, -1], action_high=[1, 1])
    assert any("5 of 600" in note for note in data.notes)
    assert np.abs(data.actions).max() <= 1


def test_output_folder_with_another_run_is_rejected(tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    words = ["train", path, "--out", str(tmp_path / "run"), "--algo", "bc", "--actor-hidden-dim", "16", *BRIEF]
    assert main(words) == 0
    assert "already holds a run" in rejected(capsys, words)


LONG_TO_COMPILE = ("cql+aspc", "diffusion_ql+aspc", "fql+aspc", "wpc+aspc")  # also trained in tests/algorithms


@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG_TO_COMPILE else [])
        for name in number_names()
        if name.endswith("+aspc")
    ],
)
def test_every_integration_trains_and_reports_its_scale(algo, tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    widths = [f for f in all_field_names(algorithms.default(algo)) if f.endswith("hidden_dim")]
    options = [word for f in widths for word in (f"--{f.replace('_', '-')}", "16")]
    options += ["--batch-size", "16", "--steps", "20", "--k-alpha", "2", "--env", "none", "--quiet", "--no-tensorboard"]
    assert main(["train", path, "--algo", algo, "--out", str(tmp_path / "run"), *options]) == 0
    run = Run(tmp_path / "run")
    assert run.config.scale_name == algorithms.default(algo).scale_name
    assert f"final {run.config.scale_name}" in capsys.readouterr().out
    assert (run.metrics["scale"] > 0).all()
    assert run.metrics["scale"][-1] != algorithms.default(algo).base.scale
    assert np.isfinite(run.policy.act(np.zeros(4))).all()


def test_scale_from_uses_the_final_scale_of_a_run(tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    assert main(["train", path, "--out", str(tmp_path / "first"), *QUICK]) == 0
    learned = Run(tmp_path / "first").metrics["scale"][-1]
    more = ["--scale-mode", "converged", "--scale-from", str(tmp_path / "first"), "--out", str(tmp_path / "second")]
    assert main(["train", path, *more, *QUICK]) == 0
    second = Run(tmp_path / "second")
    np.testing.assert_allclose(second.metrics["scale"], learned, rtol=1e-5)
    assert recorded_algorithm(second.config).scale_mode == "converged"  # so that the run can be inspected later
    assert "scale_target" in rejected(capsys, ["train", path, "--scale-mode", "linear", *QUICK])


def test_final_scale_is_the_last_finite_one():
    """A chunk without a policy update has no scale."""
    columns = {"scale": np.asarray([2.0, 4.0, 3.0, np.nan, np.nan, np.nan]), "seed": np.asarray([7, 8, 7, 8, 7, 8])}
    assert final_scale(SimpleNamespace(metrics=columns, seeds=[7, 8])) == 3.5
    unknown = {"scale": np.full(6, np.nan), "seed": columns["seed"]}
    assert final_scale(SimpleNamespace(metrics=unknown, seeds=[7, 8])) is None
    assert final_scale(SimpleNamespace(metrics={"seed": columns["seed"]}, seeds=[7, 8])) is None


def test_options_are_found_before_parsing():
    words = ["--algo", "bc", "--scale_from", "one", "--algo=td3_bc", "--steps"]
    assert last_option_value(words, "algo") == "td3_bc"
    assert last_option_value(words, "scale-from") == "one"
    assert last_option_value(words, "steps") is None


def test_horizons_are_set_together(tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    assert "Pass --horizon instead" in rejected(capsys, ["train", path, "--scale-horizon", "77", *QUICK])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--discount", "1.5"], "discount must be between 0 and 1, not 1.5"),
        (["--scale-lr", "-1"], "scale_lr must be at least 0, not -1.0"),
        (["--algo", "td3_bc", "--alpha", "-1"], "alpha must be at least 0, not -1.0"),
    ],
)
def test_out_of_range_numbers_are_rejected(words, message, tmp_path, capsys):
    path = write_hdf5(tmp_path / "logs.hdf5")
    assert message in rejected(capsys, ["train", path, "--out", str(tmp_path / "run"), *words, *QUICK])
    assert not (tmp_path / "run").exists()


def test_plugin_without_a_frozen_dataclass_gives_one_sentence(tmp_path, capsys):
    plugin = tmp_path / "plugin.py"
    register = "from aspc.algorithms import register\nfrom aspc.algorithms.bc import BC\n\n@register('bare')\n"
    plugin.write_text(f"{register}class Bare(BC):\n    spread: float = 0.5\n")
    path = write_hdf5(tmp_path / "logs.hdf5")
    with registries.restored():
        message = rejected(capsys, ["train", path, "--plugin", str(plugin), "--algo", "bare", *QUICK])
    assert "bare must be a frozen dataclass: write @dataclass(frozen=True) above Bare." in message


def test_inspecting_a_plugins_run_needs_the_plugin(tmp_path, capsys, monkeypatch):
    known = dict(registry._REGISTRY)

    def command(*words):
        """Run a command as if in a new process, without plugins."""
        monkeypatch.setattr(registry, "_REGISTRY", dict(known))
        return main([*words])

    plugin = ["--plugin", str(Path(__file__).parents[2] / "examples" / "own_algorithm.py")]
    path, out = write_hdf5(tmp_path / "logs.hdf5"), str(tmp_path / "run")
    quick = ["--steps", "40", "--log-every", "20", "--env", "none", "--quiet", "--no-tensorboard"]
    assert command("train", path, "--algo", "crr", "--out", out, *quick, *plugin) == 0
    page = ["--quiet", "--states", "50", "--out", str(tmp_path / "t.html")]
    assert command("inspect", out, *page, *plugin) == 0
    monkeypatch.setattr(registry, "_REGISTRY", dict(known))
    assert "with --plugin" in rejected(capsys, ["inspect", out, *page])


def test_unwritable_page_is_reported_before_the_work(tmp_path, capsys):
    assert "Choose another path" in rejected(capsys, ["inspect", str(tmp_path), "--out", "/proc/none.html"])
