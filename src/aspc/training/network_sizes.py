"""Determine the network sizes for a dataset, and check that the algorithm supports its actions."""

from __future__ import annotations

from typing import Any

from aspc.algorithms.interface import Algorithm, Spec
from aspc.data import Dataset
from aspc.data.streaming import StreamingDataset
from aspc.errors import AspcError, printable
from aspc.training.run_config import TrainOptions


def make_spec(data: Dataset | StreamingDataset, algorithm: Algorithm[Any], options: TrainOptions) -> Spec:
    """Return the sizes of an algorithm's networks for a dataset.

    Raises:
        AspcError: The algorithm does not support the dataset's actions, or a history is requested for discrete actions.
    """
    space = data.action_space
    if space is not None and not algorithm.handles_choices:
        names = ", ".join(factor.name for factor in space.factors if factor.choices)
        raise AspcError(
            f"{data.name}: some actions are discrete ({printable(names)}), but this algorithm supports only continuous "
            "actions. Choose a discrete algorithm, such as --algo discrete_aspc, or read the actions as continuous "
            'with --continuous "*".'
        )
    if not algorithm.handles_numbers and (space is None or 0 in space.sizes):
        raise AspcError(
            f"{data.name}: some actions are continuous, but this algorithm supports only discrete actions. Choose "
            "another algorithm, such as --algo discrete_aspc, or read the actions as discrete with --categorical."
        )
    spec = Spec(options.frames.size(data.observation_size, data.action_size), data.action_size)
    if space is not None:
        if options.history > 1:
            raise AspcError(f"{data.name}: --history does not support discrete actions. Omit it.")
        spec = spec._replace(factors=space.sizes, masked=space.masked)
    return spec
