"""Options for fitted-Q evaluation. This module does not import JAX, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from aspc.errors import AspcError


@dataclass(frozen=True)
class FQEOptions:
    """Options for fitted-Q evaluation."""

    discount: float = 0.99
    """Discount factor γ of the estimated value."""
    steps: int = 20_000
    """Number of minibatches per policy."""
    batch_size: int = 256
    """Transitions per minibatch."""
    hidden_dim: int = 256
    """Width of the critics' hidden layers (ReLU, LayerNorm)."""
    hidden_layers: int = 2
    """Number of hidden layers in each critic."""
    critics: int = 2
    """Number of critics per policy; the spread of their estimates is reported."""
    learning_rate: float = 1e-3
    """Learning rate (Adam), with cosine decay to 0."""
    tau: float = 0.05
    """Target update rate. The distance to convergence shrinks by a factor of e every 1/(tau·(1 − γ)) steps."""
    max_rows: int = 500_000
    """Maximum number of transitions; a larger dataset is subsampled."""
    seed: int = 0
    """Seed for network initialization, minibatches and the noise of stochastic policies."""

    def __post_init__(self) -> None:
        if not 0 < self.discount < 1:
            raise AspcError(f"--discount must be between 0 and 1, not {self.discount}.")
        for name in ("steps", "batch_size", "hidden_dim", "hidden_layers", "critics", "max_rows"):
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
