"""Log columns, other than the reward, for which the effect of a policy is estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aspc import data
from aspc.assessment.evidence import REWARD
from aspc.data import Dataset
from aspc.errors import AspcError


def kpi_columns(
    names: Sequence[str], dataset: Dataset, source: str | None, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return columns of the log by name.

    A column can be an observation, an action or a KPI of the dataset. Any other column is read from the dataset's file.

    Args:
        names: Names of columns. Default: the KPIs of the dataset.
        dataset: The whole dataset.
        source: The file that the dataset was loaded from, if known.
        options: The options that the dataset was loaded with.

    Raises:
        AspcError: A column does not exist.
    """
    names = list(dict.fromkeys(names or dataset.kpi_names))
    if REWARD in names:
        raise AspcError("The reward is always estimated; remove --kpi reward.")
    known = _columns(dataset)
    if unknown := [name for name in names if name not in known]:
        if source is None:
            raise AspcError(
                f"{dataset.name} has no column {unknown[0]!r}; choose from {', '.join(known) or 'none'}, or use "
                "--dataset to pass the file that contains it."
            )
        known |= _read_columns(unknown, dataset, source, options)
    return {name: known[name] for name in names}


def _columns(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the named columns of a dataset."""
    kpis = np.zeros((len(dataset), 0)) if dataset.kpis is None else dataset.kpis
    groups = (
        (dataset.kpi_names, kpis),
        (dataset.action_names, dataset.actions),
        (dataset.observation_names, dataset.observations),
    )
    return {name: values[:, i] for names, values in groups for i, name in enumerate(names)}


def _read_columns(
    names: Sequence[str], dataset: Dataset, source: str, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Reload the file with these columns as KPIs."""
    try:
        again = data.load(source, **{**options, "kpis": list(names)})
    except AspcError as error:
        raise AspcError(f"KPI {names[0]!r} cannot be read: {error}") from error
    if len(again) != len(dataset):
        raise AspcError(
            f"Reading the KPI {names[0]!r} gives {len(again):,} instead of {len(dataset):,} rows; choose another KPI."
        )
    return {name: column for name, column in _columns(again).items() if name in names}
