"""Columns of the log, besides the reward, that a policy's effect is estimated on."""

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

    A column can be an observation or an action of the dataset. Any other one is read from its file, by loading it once
    more with that column in the place of the reward.

    Args:
        names: Names of columns.
        dataset: The whole dataset.
        source: The file that the dataset was loaded from, if known.
        options: The options that it was loaded with.

    Raises:
        AspcError: If there is no such column.
    """
    found = {}
    for name in dict.fromkeys(names):
        if name == REWARD:
            raise AspcError("The reward is always estimated; remove --kpi reward.")
        if name in dataset.observation_names:
            found[name] = dataset.observations[:, dataset.observation_names.index(name)]
        elif name in dataset.action_names:
            found[name] = dataset.actions[:, dataset.action_names.index(name)]
        elif source is None:
            known = (*dataset.observation_names, *dataset.action_names)
            raise AspcError(
                f"{dataset.name} has no column {name!r}; choose from {', '.join(known) or 'none'}, or pass the file "
                "that has it with --dataset."
            )
        else:
            found[name] = _read_column(name, dataset, source, options)
    return found


def _read_column(name: str, dataset: Dataset, source: str, options: Mapping[str, Any]) -> np.ndarray:
    try:
        again = data.load(source, **{**options, "key_map": {**options.get("key_map", {}), "rewards": name}})
    except AspcError as error:
        raise AspcError(f"The KPI {name!r} cannot be read: {error}") from error
    if len(again) != len(dataset):
        raise AspcError(f"The KPI {name!r} has {len(again):,} rows, and {dataset.name} has {len(dataset):,}.")
    return again.rewards
