"""Logs written as files of every format, and checks of what is read from them."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from aspc import data
from aspc.data.dataset import Dataset
from aspc.data.readers import formats
from aspc.errors import AspcError


def write_hdf5(path: Path, arrays: dict[str, np.ndarray], **options: object) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, **options)
    return path


def columns(log: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        **{f"obs_{i}": log["observations"][:, i] for i in range(log["observations"].shape[1])},
        **{f"action_{i}": log["actions"][:, i] for i in range(log["actions"].shape[1])},
        "reward": log["rewards"],
        "terminal": log["terminals"],
        "timeout": log["timeouts"],
    }


def write_csv(path: Path, table: dict[str, np.ndarray], separator: str = ",") -> Path:
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt") as file:
        file.write(separator.join(table) + "\n")
        for row in zip(*table.values(), strict=True):
            file.write(separator.join(str(value) for value in row) + "\n")
    return path


def write_table(path: Path, table: dict[str, np.ndarray]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.table(table)
    if path.suffix == ".parquet":
        pq.write_table(arrow, path)
    else:
        with pa.ipc.new_file(path, arrow.schema) as writer:
            writer.write_table(arrow)
    return path


def write_as(path: Path, log: dict[str, np.ndarray]) -> Path:
    if path.suffix in (".hdf5", ".h5"):
        return write_hdf5(path, log)
    if path.suffix == ".npz":
        np.savez(path, **log)
        return path
    if path.suffix == ".xlsx":
        pd.DataFrame(columns(log)).astype(float).to_excel(path, index=False)
        return path
    return (
        write_csv(path, columns(log)) if path.name.endswith(formats.CSV_SUFFIXES) else write_table(path, columns(log))
    )


def write_without_ends(path: Path, log: dict[str, np.ndarray], **more: np.ndarray) -> Path:
    if path.suffix in (".npz", ".hdf5"):
        return write_as(path, {**{key: log[key] for key in ("observations", "actions", "rewards")}, **more})
    table = columns(log)
    del table["terminal"], table["timeout"]
    return (write_csv if path.suffix == ".csv" else write_table)(path, {**table, **more})


def same(dataset: Dataset, log: dict[str, np.ndarray], atol: float = 0.0) -> None:
    for key, array in log.items():
        np.testing.assert_allclose(getattr(dataset, key), array, rtol=0, atol=atol, err_msg=key)


def refuse(path: Path, message: str, **options: object) -> None:
    with pytest.raises(AspcError, match=message) as error:
        data.load(path, **options)
    assert "\n" not in str(error.value)
