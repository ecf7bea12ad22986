"""Action spaces with continuous and discrete factors. The module needs only NumPy, because policies import it.

Actions are rows of numbers. A continuous factor is one column. A discrete factor is a block of columns, one per option,
in which the chosen option is 1 and the others are 0 (one-hot).

    factors   dose (continuous)   valve: shut, open      an action        0.7   0   1
    columns   dose                valve=shut  valve=open

Action masks are the last columns of the observation: 1 if an option is allowed in the state, 0 if not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_CHOICES = 1_000  # options per factor


class Factor(NamedTuple):
    """One factor of an action: discrete with named options (`choices`), or continuous if it has none."""

    name: str
    choices: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.choices) or 1


class ActionSpace(NamedTuple):
    """The factors of an action in column order, and the columns of the options that can be masked.

    The last `len(masked)` columns of the observation are the masks of the action columns `masked`, in this order.
    """

    factors: tuple[Factor, ...]
    masked: tuple[int, ...] = ()

    @property
    def has_choices(self) -> bool:
        """True if any factor is discrete."""
        return any(factor.choices for factor in self.factors)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of options per factor; 0 for a continuous factor."""
        return tuple(len(factor.choices) for factor in self.factors)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: "dose", "valve=shut", "valve=open"."""
        return tuple(
            name
            for factor in self.factors
            for name in ([f"{factor.name}={choice}" for choice in factor.choices] or [factor.name])
        )

    @property
    def is_choice(self) -> np.ndarray:
        """Boolean array [act]: True for the columns of discrete factors."""
        return np.repeat([bool(factor.choices) for factor in self.factors], [factor.size for factor in self.factors])

    def blocks(self) -> list[tuple[Factor, slice]]:
        """Return each factor with its columns."""
        return list(zip(self.factors, factor_slices(self.sizes), strict=True))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return actions [N, act] for values [N, factors], which are option indices if the factor is discrete."""
        parts = [
            values[:, [i]] == np.arange(factor.size) if factor.choices else values[:, [i]]
            for i, factor in enumerate(self.factors)
        ]
        return np.concatenate([np.asarray(part, values.dtype) for part in parts], axis=1)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Return the values [..., factors] that `encode` maps to these actions; -1 if no option is chosen."""
        parts = []
        for factor, columns in self.blocks():
            block = actions[..., columns]
            index = np.where(block.max(-1) > 0, block.argmax(-1), -1)
            parts.append(index if factor.choices else block[..., 0])
        return np.stack(parts, axis=-1)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample uniformly among allowed options for each observation [N, obs]; continuous factors are 0.

        If all options are forbidden, none is chosen.
        """
        allowed = np.ones((len(observations), len(self.columns)), bool)
        if self.masked:
            allowed[:, list(self.masked)] = observations[:, -len(self.masked) :] > 0.5
        return self.snap(np.where(self.is_choice & allowed, rng.uniform(0.5, 1.0, allowed.shape), 0.0))

    def snap(self, actions: np.ndarray) -> np.ndarray:
        """Make each discrete factor one-hot: 1 in its largest column, 0 in the others.

        A factor without a positive column gets no option, for example if the masks forbid all of them.
        """
        snapped = np.array(actions)
        for factor, columns in self.blocks():
            if factor.choices:
                block = actions[..., columns]
                is_largest = block.argmax(-1)[..., None] == np.arange(factor.size)
                snapped[..., columns] = is_largest & (block.max(-1) > 0)[..., None]
        return snapped

    def name_choices(self, actions: np.ndarray) -> list[Any]:
        """Return the names of the options chosen by actions [N, act], as a list with one entry per action.

        An entry is the name itself if the action has a single factor that is discrete, and otherwise a dictionary with
        the name or number of each factor. If every option is masked, the name is None.
        """
        rows = []
        for values in self.decode(actions).tolist():
            row = {
                factor.name: value if not factor.choices else factor.choices[int(value)] if value >= 0 else None
                for factor, value in zip(self.factors, values, strict=True)
            }
            rows.append(next(iter(row.values())) if len(row) == 1 and self.has_choices else row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the space as JSON values."""
        factors = [{"name": factor.name, "choices": list(factor.choices)} for factor in self.factors]
        return {"factors": factors, "masked": list(self.masked)}

    @classmethod
    def from_text(cls, text: str) -> ActionSpace:
        """Parse a space from the JSON text of `to_text`.

        Raises:
            ValueError: The text is not an action space.
        """
        return cls.from_json(json.loads(text))

    def to_text(self) -> str:
        """Return the space as JSON text."""
        return json.dumps(self.to_json())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ActionSpace:
        """Return a space from the JSON values of `to_json`.

        Raises:
            ValueError: The values are not an action space.
        """
        try:
            factors = tuple(Factor(str(f["name"]), tuple(map(str, f["choices"]))) for f in content["factors"])
            masked = tuple(content["masked"])
        except (KeyError, TypeError) as error:
            raise ValueError("not an action space") from error
        space = cls(factors, masked)
        if not factors or not are_valid_factors(space.sizes, masked):
            raise ValueError("not an action space")
        return space


def factor_slices(sizes: Sequence[int]) -> list[slice]:
    """Return the columns of each factor; a factor of size 0 is continuous and has one column."""
    stops = np.cumsum([max(size, 1) for size in sizes]).tolist()
    return [slice(stop - max(size, 1), stop) for stop, size in zip(stops, sizes, strict=True)]


def joint_options(sizes: Sequence[int]) -> np.ndarray:
    """Return all combinations of options as actions [combinations, act]; continuous columns are 0."""
    columns = factor_slices(sizes)
    chosen = np.indices([max(size, 1) for size in sizes]).reshape(len(sizes), -1)
    options = np.zeros((chosen.shape[1], columns[-1].stop), np.float32)
    for size, block, index in zip(sizes, columns, chosen, strict=True):
        if size:
            options[np.arange(len(options)), block.start + index] = 1
    return options


def are_valid_factors(sizes: Sequence[Any], masked: Sequence[Any]) -> bool:
    """Return whether the sizes of factors are valid and all masked columns belong to discrete factors."""
    if not all(type(size) is int and 0 <= size <= MAX_CHOICES for size in sizes):
        return False
    choice_columns = {
        i for size, columns in zip(sizes, factor_slices(sizes), strict=True) if size
        for i in range(columns.start, columns.stop)
    }  # fmt: skip
    return all(type(i) is int and i in choice_columns for i in masked) and len(set(masked)) == len(masked)
