"""Policy files: old formats load, newer ones give a remedy, and hostile files are rejected cheaply."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from aspc.algorithms.diffusion_ql import DiffusionQL
from aspc.algorithms.rebrac import ReBRAC
from aspc.errors import AspcError
from aspc.guards import fit_ood_score
from aspc.policy import WEIGHTS, Policy, find_policy, load_policy
from aspc.policy_file import FORMAT_VERSION
from aspc.policy_guards import Guards
from fuzz_child import fuzz
from policies import narrow, policy_named, policy_of
from tiny import make_dataset

FORMATS = Path(__file__).with_name("formats")
KINDS = ("td3_bc", "fql", "diffusion_ql")
GUARDED = "bc"  # an algorithm whose policy gets guards


def write(path: Path, header: dict[str, Any], body: bytes = b"") -> Path:
    """Write a safetensors file by hand: header length, header, data."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def header_of(path: Path) -> dict[str, Any]:
    raw = (path / WEIGHTS).read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def change_header(path: Path, **changes: Any) -> Path:
    """Replace values in the header of a saved policy."""
    raw = (path / WEIGHTS).read_bytes()
    header = header_of(path)
    own = json.loads(header["__metadata__"]["aspc"])
    settings = {**own["settings"], **changes.pop("settings", {})}
    header["__metadata__"]["aspc"] = json.dumps({**own, "settings": settings, **changes})
    write(path / WEIGHTS, header, raw[8 + int.from_bytes(raw[:8], "little") :])
    return path


@pytest.mark.parametrize("kind", ["deterministic", "flow", "diffusion"])
def test_format_1_policies_load_and_act_as_recorded(kind: str) -> None:
    """The files were written when format 1 was current, with the actions of their policy."""
    expected = json.loads((FORMATS / "format1" / kind / "actions.json").read_text())
    policy = load_policy(FORMATS / "format1" / kind)
    assert policy.kind == kind
    np.testing.assert_allclose(policy.act(np.array(expected["observations"]), 5), expected["actions"], atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_save_and_load_round_trip(tmp_path: Path, name: str) -> None:
    policy = policy_named(name)
    loaded = load_policy(policy.save(tmp_path / "policy"))
    assert loaded.header() == policy.header()
    observations = np.random.default_rng(0).normal(size=(9, 5))
    np.testing.assert_array_equal(loaded.act(observations, 1), policy.act(observations, 1))
    assert json.loads((tmp_path / "policy" / "policy.json").read_text()) == json.loads(json.dumps(policy.header()))


def test_newer_and_unknown_formats_give_a_remedy(tmp_path: Path) -> None:
    saved = policy_named("td3_bc").save(tmp_path)
    with pytest.raises(AspcError, match=r"written by a newer version of aspc.*Update"):
        load_policy(change_header(saved, format=FORMAT_VERSION + 1))
    with pytest.raises(AspcError, match=r"format '1'.*Save the policy again"):
        load_policy(change_header(saved, format="1"))
    with pytest.raises(AspcError, match=r"kind 'magic'.*does not support"):
        load_policy(change_header(saved, format=1, kind="magic"))


def test_small_file_with_huge_claimed_sizes_is_rejected_cheaply(tmp_path: Path) -> None:
    size = 4 * 5 * 10**12
    layer = {"dtype": "F32", "shape": [10**12, 5], "data_offsets": [0, size]}
    small = write(tmp_path / WEIGHTS, {"layers.0.weight": layer})
    assert small.stat().st_size < 200
    empty = {"dtype": "F32", "shape": [10**12, 0], "data_offsets": [0, 0]}  # an empty array can claim a huge size too
    other = policy_named("td3_bc").save(tmp_path / "empty")
    raw = (other / WEIGHTS).read_bytes()
    header = header_of(other) | {"layers.0.weight": empty}
    (tmp_path / "zeros").mkdir()
    tracemalloc.start()
    with pytest.raises(AspcError, match="damaged"):
        Policy.load(tmp_path)
    write(other / WEIGHTS, header, raw[8 + int.from_bytes(raw[:8], "little") :])
    with pytest.raises(AspcError, match="damaged"):
        Policy.load(other)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()
    too_long = tmp_path / "zeros" / WEIGHTS
    too_long.write_bytes((10**12).to_bytes(8, "little") + b"{}")
    with pytest.raises(AspcError, match="damaged"):
        Policy.load(too_long)


@pytest.mark.parametrize(
    "settings",
    [
        {"candidates": 10**12},
        {"candidates": 0},
        {"candidates": True},
        {"candidates": 2.5},
        {"alphas_cumprod": [0.5]},
        {"alphas_cumprod": [0.0] * 5},
        {"posterior_std": [float("inf")] * 5},
        {"activation": "eval"},
        {"activation": ["relu"]},
    ],
)
def test_hostile_settings_are_rejected(tmp_path: Path, settings: dict[str, Any]) -> None:
    saved = policy_named("diffusion_ql").save(tmp_path)
    with pytest.raises(AspcError, match="damaged"):
        load_policy(change_header(saved, settings=settings))


@pytest.mark.parametrize(
    "change",
    [
        {"observation_std": [0.0] * 5},
        {"observation_mean": [float("nan")] * 5},
        {"action_low": [9.0] * 3},
        {"observation_size": 6},
        {"action_high": [[1.0, 1.0, 1.0]]},
        {"action_high": [10**400] * 3},
        {"info": 3},
        {"settings": {"layer_norm_eps": 0.0}},
    ],
)
def test_hostile_headers_are_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    saved = policy_of(narrow(ReBRAC(actor_layer_norm=True))).save(tmp_path)
    load_policy(saved)
    with pytest.raises(AspcError, match="damaged"):
        load_policy(change_header(saved, **change))


def test_arrays_that_would_broadcast_are_rejected(tmp_path: Path) -> None:
    """A bias [n, 1] would turn a row into a matrix; an ensemble would multiply the actions."""
    policy = policy_named("td3_bc")
    tall = policy.arrays["layers.0.bias"][:, None]
    members = {name: np.stack([array] * 2) for name, array in policy.arrays.items()}
    wrong = np.full_like(policy.arrays["layers.0.bias"], np.inf)
    for arrays in (
        {**policy.arrays, "layers.0.bias": tall},
        {**policy.arrays, "layers.0.bias": wrong},
        members,
        {name: array for name, array in policy.arrays.items() if not name.startswith("layers.1")},
    ):
        dataclasses.replace(policy, arrays=arrays).save(tmp_path)
        with pytest.raises(AspcError, match="damaged"):
            load_policy(tmp_path)


def test_other_dtypes_are_rejected(tmp_path: Path) -> None:
    saved = policy_named("td3_bc").save(tmp_path)
    raw = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(raw.replace(b'"F32"', b'"I32"'))
    with pytest.raises(AspcError, match="damaged"):
        load_policy(saved)


def test_find_policy(tmp_path: Path) -> None:
    for seed in (10, 2):
        policy_named("td3_bc").save(tmp_path / "policy" / f"seed{seed}")
    assert find_policy(tmp_path).name == "seed2"
    assert find_policy(tmp_path, 2) == find_policy(tmp_path / "policy" / "seed2") == tmp_path / "policy" / "seed2"
    with pytest.raises(AspcError, match=r"no policy for seed 1\. Choose from 2, 10"):
        find_policy(tmp_path, 1)
    with pytest.raises(AspcError, match="There is no policy in"):
        load_policy(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"seeds": [10, 2]}')  # the order of the config
    assert find_policy(tmp_path).name == "seed10"
    for damaged in ("", "[]", '{"seeds": 3}'):
        (tmp_path / "config.json").write_text(damaged)
        assert find_policy(tmp_path).name == "seed2"
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.json").write_text('{"seeds": [0]}')
    with pytest.raises(AspcError, match=r"has not finished.*train --resume .*cut.*--checkpoints --select"):
        find_policy(cut)


def test_policy_accepts_named_columns_and_has_a_one_line_repr() -> None:
    names = [f"T{i}" for i in range(5)]
    policy = policy_named("td3_bc")
    named = dataclasses.replace(policy, info={**policy.info, "observation_names": names})
    row = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    table = pd.DataFrame({**{name: row[:, i] for i, name in reversed([*enumerate(names)])}, "more": 1.0})
    np.testing.assert_array_equal(named.act(table), policy.act(row))
    np.testing.assert_array_equal(named.act(dict(zip(names, row[0].tolist(), strict=True))), policy.act(row[0]))
    np.testing.assert_array_equal(named.act(pd.DataFrame(row)), policy.act(row))  # without names: in their own order
    np.testing.assert_array_equal(policy.act(pd.DataFrame(row, columns=names)), policy.act(row))
    with pytest.raises(AspcError, match=r"is missing 'T3'\. This policy takes T0, T1, T2, T3, T4"):
        named.act(table.drop(columns="T3"))
    with pytest.raises(AspcError, match=r"no column names\. Pass an array"):
        policy.act({"T0": 1.0})
    np.testing.assert_array_equal(policy.act(pd.Series(row[0], index=names)), policy.act(row[0]))
    assert repr(policy) == (
        "Policy(deterministic, 5 observation and 3 action dimensions, algo td3_bc, dataset random, step 7, seed 3)"
    )


def test_table_rows_are_matched_by_name_and_unknown_names_are_rejected() -> None:
    names = ["T0", "T1", "index", "columns", "T4"]  # two of them are attributes of a table
    policy = policy_named("td3_bc")
    named = dataclasses.replace(policy, info={**policy.info, "observation_names": names})
    row = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    expected = policy.act(row)
    table = pd.DataFrame(row, columns=names)[names[::-1]].assign(more="text")
    np.testing.assert_array_equal(named.act(table), expected)
    np.testing.assert_array_equal(named.act(pa.Table.from_pandas(table)), expected)
    np.testing.assert_array_equal(named.act(table.iloc[0]), policy.act(row[0]))
    for rows in (
        [row for _, row in table.iterrows()],
        table.to_dict("records"),
        list(table.itertuples()),
        row.tolist(),
    ):
        np.testing.assert_array_equal(named.act(rows), expected)
    np.testing.assert_array_equal(named.act(next(table.itertuples(index=False))), policy.act(row[0]))
    for unnamed in (row[0], row[0].tolist(), tuple(row[0]), pd.Series(row[0]), pd.DataFrame(row).iloc[0]):
        np.testing.assert_array_equal(named.act(unnamed), policy.act(row[0]))
    foreign = pd.DataFrame(row, columns=[name.upper() + "!" for name in names])
    levels = pd.DataFrame(row, columns=pd.MultiIndex.from_product([["a"], names]))
    for wrong in (foreign, foreign.iloc[0], [foreign.iloc[0]], next(foreign.itertuples(index=False)), levels):
        with pytest.raises(AspcError, match=r"is missing 'T0'\. This policy takes T0, T1, index, columns, T4, or an"):
            named.act(wrong)
    with pytest.raises(AspcError, match="contains 'T1' 2 times"):
        named.act(table[[*names, "T1"]])


def check_fuzz(folder: Path, name: str, cases: int) -> None:
    algorithm = DiffusionQL(hidden_dim=4, time_dim=4, diffusion_steps=2) if name == "diffusion_ql" else None
    policy = policy_named(name, obs=2, act=1) if algorithm is None else policy_of(algorithm, 2, 1)
    if name == GUARDED:
        policy = policy.with_guards(Guards(max_change=[0.1], ood=fit_ood_score(make_dataset(obs=2, act=1))))
    whole = (policy.save(folder / name) / WEIGHTS).read_bytes()
    (folder / "whole.safetensors").write_bytes(whole)
    refused, crashed = fuzz(folder, ".safetensors", cases)
    assert crashed == []
    assert cases / 2 < refused < cases  # otherwise the damage has no effect, or intact files are rejected too


@pytest.mark.parametrize("name", [*KINDS, GUARDED])
def test_damaged_policies_are_rejected(tmp_path: Path, name: str) -> None:
    check_fuzz(tmp_path, name, 150)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, GUARDED])
def test_ten_thousand_damaged_policies_are_rejected(tmp_path: Path, name: str) -> None:
    check_fuzz(tmp_path, name, 10_000)
