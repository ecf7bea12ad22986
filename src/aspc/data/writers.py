"""Write datasets as HDF5 or NPZ files, atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data.dataset import Dataset
from aspc.data.metadata import HDF5_ATTRIBUTE, NPZ_PREFIX
from aspc.io import atomic_output


def dataset_arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return a dataset's arrays under D4RL's names."""
    arrays = {
        "observations": dataset.observations,
        "actions": dataset.actions,
        "rewards": dataset.rewards,
        "terminals": dataset.terminals,
        "timeouts": dataset.timeouts,
    }
    if dataset.next_observations is not None:
        arrays["next_observations"] = dataset.next_observations
    if dataset.kpis is not None:
        arrays["kpis"] = dataset.kpis
    return arrays


def dataset_metadata(dataset: Dataset) -> dict[str, Any]:
    """Return the metadata of a dataset."""
    return {
        "env": dataset.env,
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "ref_min": dataset.ref_min,
        "ref_max": dataset.ref_max,
        "observation_names": list(dataset.observation_names),
        "action_names": list(dataset.action_names),
        "kpi_names": list(dataset.kpi_names),
        "action_space": None if dataset.action_space is None else dataset.action_space.to_text(),
    }


def write_hdf5(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None = None) -> None:
    """Write arrays in D4RL's layout; the metadata becomes an attribute, which other readers ignore."""
    import h5py

    with atomic_output(path) as temporary, h5py.File(temporary, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
        if metadata:
            file.attrs[HDF5_ATTRIBUTE] = json.dumps(metadata)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None = None) -> None:
    """Write arrays as an NPZ file; the metadata becomes additional arrays, which other readers ignore."""
    extra = {
        f"{NPZ_PREFIX}{key}": np.asarray(value) for key, value in (metadata or {}).items() if value not in (None, [])
    }
    with atomic_output(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **{**arrays, **extra})  # type: ignore[arg-type]
