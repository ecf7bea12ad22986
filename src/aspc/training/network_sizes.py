"""The sizes of the networks for a dataset, and whether an algorithm can learn its actions."""

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
        AspcError: The algorithm does not support the dataset's actions, or these do not support the history.
    """
    space = data.action_space
    if space is not None and not algorithm.handles_choices:
        names = ", ".join(factor.name for factor in space.factors if factor.choices)
        raise AspcError(
            f"{data.name}: actions are choices ({printable(names)}), but this algorithm learns continuous actions. "
            'Choose a discrete algorithm, such as --algo discrete_aspc, or read them as numbers: --continuous "*".'
        )
    if not algorithm.handles_numbers and (space is None or 0 in space.sizes):
        raise AspcError(
            f"{data.name}: some actions are numbers, but this algorithm learns choices only. Choose another one, "
            "such as --algo discrete_aspc, or name the choices with --categorical."
        )
    spec = Spec(options.frames.size(data.observation_size, data.action_size), data.action_size)
    if space is not None:
        if options.history > 1:
            raise AspcError(f"{data.name}: --history does not support actions that are choices. Omit it.")
        spec = spec._replace(factors=space.sizes, masked=space.masked)
    return spec
