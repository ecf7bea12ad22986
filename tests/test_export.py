"""Exported policies act like the original, in every format."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from aspc import algorithms
from aspc.__main__ import main
from aspc.algorithms.iql import IQL
from aspc.algorithms.rebrac import ReBRAC
from aspc.errors import AspcError
from aspc.export import export, load_stablehlo, metadata, render_files
from aspc.export.onnx import Graph
from aspc.policy import Policy
from aspc.policy_kinds import ACTIVATIONS, denoise, mlp
from policies import narrow, policy_named, policy_of
from registries import number_names

ROWS, PARTS = 10_000, 5
KINDS = ("td3_bc", "fql", "diffusion_ql")
MAX_CALLS = 40  # function calls for one action of a small network
VARIANTS = {"rebrac with LayerNorm": ReBRAC(actor_layer_norm=True), "deterministic iql": IQL(deterministic=True)}


@cache
def policy(name: str) -> Policy:
    return policy_of(narrow(VARIANTS[name])) if name in VARIANTS else policy_named(name)


def inputs_of(policy: Policy, rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return random observations, and the noise that `policy.act(…, 5)` draws."""
    observations = np.random.default_rng(seed).normal(0, 2, (rows, policy.observation_size)).astype(np.float32)
    rng = np.random.default_rng(5)
    return {"observations": observations} | {name: d.sample(rng, rows) for name, d in policy.noise().items()}


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process with one thread."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=env, timeout=600)


def clear_choices(policy: Policy, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the rows where the best candidate leads by more than rounding errors, so that the choice is determined."""
    if policy.kind != "diffusion":
        return np.ones(len(inputs["observations"]), bool)
    states = ((inputs["observations"] - policy.observation_mean) / policy.observation_std)[:, None]
    noise = inputs["noise"]
    actions = denoise(policy.arrays, policy.settings, states, noise[0], list(noise[1:]))
    preference = mlp(policy.arrays, policy.settings, (states, actions), "critics.").min(0)[..., 0] + inputs["gumbel"]
    second, first = np.partition(preference, -2, axis=1)[:, -2:].T
    clear = first - second > 1e-4
    assert clear.mean() > 0.99
    return clear


# -- ONNX ------------------------------------------------------------------------------------------------------


def session_of(model: bytes) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", [*number_names(), *VARIANTS])
def test_onnx_runtime_acts_like_the_policy(name: str) -> None:
    """Split into parts, because a batch of 10,000 with several candidates each takes much memory."""
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    ours = policy(name)
    if ours.kind == "diffusion":  # fewer candidates to save time; the next test uses all 50
        ours = replace(ours, settings={**ours.settings, "candidates": 8})
    session = session_of(render_files(ours, "onnx")[""])
    for part in range(PARTS):
        inputs = inputs_of(ours, ROWS // PARTS, seed=part)
        (actions,) = session.run(["actions"], inputs)
        expected = ours.act(inputs["observations"], 5)
        assert np.ptp(expected, axis=0).min() > 0.2  # the policy is not constant
        clear = clear_choices(ours, inputs)
        np.testing.assert_allclose(actions[clear], expected[clear], atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_onnx_accepts_any_batch_size_and_has_metadata(name: str) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    ours = policy(name)
    raw = render_files(ours, "onnx")[""]
    model = onnx.load_from_string(raw)
    onnx.checker.check_model(model, full_check=True)
    session = session_of(raw)
    for rows in (1, 2, 7):
        inputs = inputs_of(ours, rows)
        (actions,) = session.run(None, inputs)
        np.testing.assert_allclose(actions, ours.act(inputs["observations"], 5), atol=1e-5)
    found = {p.key: p.value for p in model.metadata_props}
    assert (found["algo"], found["dataset"], found["step"], found["seed"]) == (name, "random", "7", "3")
    assert json.loads(found["versions"]) == {"aspc": "0"}
    assert (found["observation_size"], found["action_size"]) == ("5", "3")
    shapes = {i.name: i.shape for i in session.get_inputs()}
    assert shapes.pop("observations") == ["batch", 5]
    assert shapes == {key: noise["shape"] for key, noise in json.loads(found["noise"]).items()}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_format_has_every_activation(tmp_path: Path, activation: str) -> None:
    ours = policy("td3_bc")
    ours = replace(ours, settings={**ours.settings, "activation": activation})
    inputs = inputs_of(ours, 500)
    expected = ours.act(inputs["observations"])
    (actions,) = session_of(render_files(ours, "onnx")[""]).run(None, inputs)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    act = load_stablehlo(export(ours.save(tmp_path / "policy"), "stablehlo"))
    np.testing.assert_allclose(act(inputs["observations"]), expected, atol=1e-5)


def test_symbol_rejects_unsupported_indexing() -> None:
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    symbol = Graph(onnx).input("x", (None, 3))
    assert symbol[:, 1:].shape == (2, 2)
    for index in (slice(None, None, 2), (slice(None), [0, 1])):
        with pytest.raises(TypeError, match="cannot be indexed"):
            symbol[index]


def test_missing_onnx_gives_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    saved = policy("td3_bc").save(tmp_path / "policy")
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(saved), "--format", "onnx"]) == 2
    assert capsys.readouterr().err == "aspc: Writing ONNX needs an extra: pip install 'aspc[onnx]'.\n"
    assert not (saved / "policy.onnx").exists()


# -- StableHLO -------------------------------------------------------------------------------------------------

FRESH_PROCESS = """
import sys, numpy as np
from aspc.export import load_stablehlo
act = load_stablehlo(sys.argv[1])
inputs = np.load(sys.argv[2])
many, one = act(inputs["observations"], 5), act(inputs["observations"][0], 5)
np.savez(sys.argv[3], many=many, one=one, size=act.metadata["action_size"])
"""


def test_stablehlo_in_a_new_process(tmp_path: Path) -> None:
    ours = policy("td3_bc")
    inputs = inputs_of(ours, 300)
    np.savez(tmp_path / "in.npz", **inputs)
    path = export(ours.save(tmp_path / "policy"), "stablehlo")
    done = python("-c", FRESH_PROCESS, str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["many"], ours.act(inputs["observations"]), atol=1e-5)
        np.testing.assert_allclose(out["one"], ours.act(inputs["observations"][0]), atol=1e-5)
        assert out["size"] == 3


@pytest.mark.parametrize("name", KINDS[1:])
def test_stablehlo_of_stochastic_policies(tmp_path: Path, name: str) -> None:
    ours = policy(name)
    act = load_stablehlo(export(ours.save(tmp_path / "policy"), "stablehlo"))
    inputs = inputs_of(ours, 200)
    clear = clear_choices(ours, inputs)
    expected = ours.act(inputs["observations"], 5)
    np.testing.assert_allclose(act(inputs["observations"], 5)[clear], expected[clear], atol=1e-5)
    assert act.metadata == json.loads(json.dumps(metadata(ours)))


def test_damaged_stablehlo_file_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PK nothing")
    for path in (tmp_path / "x", tmp_path / "y"):
        with pytest.raises(AspcError, match=r"Export the policy again|does not exist"):
            load_stablehlo(path)


# -- NumPy -----------------------------------------------------------------------------------------------------

ISOLATED = """
import sys
import numpy as np
import policy
inputs = np.load(sys.argv[1])
many, one = policy.act(inputs["observations"], 5), policy.act(inputs["observations"][0], 5)
calls, row = [], inputs["observations"][:1]
sys.setprofile(lambda frame, event, arg: calls.append(event in ("call", "c_call")))
policy.act(row)
sys.setprofile(None)
foreign = {name.partition(".")[0] for name in sys.modules} & {"aspc", "jax", "jaxlib", "safetensors", "scipy"}
np.savez(sys.argv[2], many=many, one=one, foreign=sorted(foreign), calls=sum(calls))
"""


@pytest.mark.parametrize("name", KINDS)
def test_numpy_folder_needs_only_numpy(tmp_path: Path, name: str) -> None:
    """Isolated mode ignores the paths and variables of this environment."""
    ours = policy(name)
    folder = export(ours.save(tmp_path / "policy"), "numpy", tmp_path / "out")
    assert {f.name for f in folder.iterdir()} == {"policy.py", "weights.npz"}
    inputs = inputs_of(ours, 50)
    np.savez(tmp_path / "in.npz", **inputs)
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + ISOLATED
    done = python("-I", "-W", "error", "-c", script, str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["many"], ours.act(inputs["observations"], 5))
        np.testing.assert_array_equal(out["one"], ours.act(inputs["observations"][0], 5))
        assert out["foreign"].size == 0
        if ours.kind == "deterministic":  # benchmarks/policy_latency.py measures the time
            assert 5 < out["calls"] <= MAX_CALLS


def test_numpy_module_is_a_program(tmp_path: Path) -> None:
    ours = policy("td3_bc")
    folder = export(ours.save(tmp_path / "policy"), "numpy")
    observation = ["0.5", "-1", "2", "0", "0.25"]
    done = python(str(folder / "policy.py"), *observation)
    np.testing.assert_allclose(np.array(done.stdout.split(), float), ours.act(np.array(observation, float)), rtol=1e-6)
    assert "takes observations of shape [5]" in python(str(folder / "policy.py"), "1").stderr


def test_loaded_policy_acts_without_jax_and_with_few_calls(tmp_path: Path) -> None:
    saved = policy_of(algorithms.default("td3_bc"), 17, 6).save(tmp_path)
    script = """
import sys, numpy as np, aspc
act, calls = aspc.load_policy(sys.argv[1]).act, []
sys.setprofile(lambda frame, event, arg: calls.append(event in ("call", "c_call")))
act(np.zeros(17, np.float32))
sys.setprofile(None)
assert not [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]
print(sum(calls))
"""
    assert 5 < int(python("-c", script, str(saved)).stdout) <= MAX_CALLS


# -- observations by name --------------------------------------------------------------------------------------


def test_exports_accept_named_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["T0", "T1", "T2", "T3", "T4"]
    ours = policy("td3_bc")
    saved = replace(ours, info={**ours.info, "observation_names": names}).save(tmp_path / "policy")
    act = load_stablehlo(export(saved, "stablehlo"))
    monkeypatch.syspath_prepend(str(export(saved, "numpy")))
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    module = importlib.import_module("policy")
    monkeypatch.delitem(sys.modules, "policy")
    rows = inputs_of(ours, 4)["observations"]
    expected = ours.act(rows)
    table = pd.DataFrame(rows, columns=names)[names[::-1]]
    for acts, refused in ((act, AspcError), (module.act, ValueError)):
        for one, many in ((rows[0], rows), (table.iloc[0], table), (dict(table.iloc[0]), pd.DataFrame(rows))):
            np.testing.assert_allclose(acts(one), expected[0], atol=1e-5)
            np.testing.assert_allclose(acts(many), expected, atol=1e-5)
        for wrong in (table.rename(columns=str.lower), table.iloc[0].drop("T0")):
            with pytest.raises(refused, match=r"is missing 'T0'\. This policy takes T0, .*, or an array in this order"):
                acts(wrong)


# -- files -----------------------------------------------------------------------------------------------------


def test_command_selects_a_seed_and_keeps_existing_files(tmp_path: Path, capsys: Any) -> None:
    for seed, name in ((0, "td3_bc"), (4, "iql")):
        policy(name).save(tmp_path / "policy" / f"seed{seed}")
    assert main(["export", str(tmp_path), "--format", "numpy", "--seed", "4"]) == 0
    folder = tmp_path / "policy" / "seed4" / "numpy"
    assert str(folder) in capsys.readouterr().out
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert main(["export", str(tmp_path), "--format", "numpy", "--seed", "0", "--out", str(folder)]) == 2
    assert "already exists. Choose another --out, or replace it with --force" in capsys.readouterr().err
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before
    assert main(["export", str(tmp_path), "--format", "numpy", "--seed", "0", "--out", str(folder), "--force"]) == 0
    assert (folder / "weights.npz").read_bytes() != before["weights.npz"]
    assert sorted(f.name for f in folder.parent.iterdir()) == ["numpy", "policy.json", "weights.safetensors"]


def test_force_never_replaces_foreign_folders(tmp_path: Path) -> None:
    saved = policy("td3_bc").save(tmp_path / "policy")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(AspcError, match="will not be replaced"):
        export(saved, "stablehlo", tmp_path / "mine", force=True)
    with pytest.raises(AspcError, match="will not be replaced"):
        export(saved, "numpy", tmp_path / "mine", force=True)
    (tmp_path / "file").write_text("keep")
    with pytest.raises(AspcError, match="cannot be written"):
        export(saved, "numpy", tmp_path / "file" / "below")


# -- the container ---------------------------------------------------------------------------------------------


def test_dockerfile_copies_existing_files_and_is_not_root() -> None:
    """Catch renamed files and extras, since a test cannot build the container."""
    root = Path(__file__).parents[1]
    lines = (root / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert {"pyproject.toml", "src"} <= set(copied)
    allowed = (root / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (root / name).exists(), name
        assert f"!{name}" in allowed, name
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for name in (project["readme"], *project["license-files"]):
        assert name in copied  # the build backend reads them
    (extras,) = [line.partition("=")[2] for line in lines if line.startswith("ARG EXTRAS=")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert [line for line in lines if line.startswith("USER ")] == ["USER aspc"]
    assert 'ENTRYPOINT ["aspc"]' in lines
    assert "aspc" in project["scripts"]
