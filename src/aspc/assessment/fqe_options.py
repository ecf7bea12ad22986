"""How policies are evaluated, as data; without JAX, so that help is there at once."""

from __future__ import annotations

from dataclasses import dataclass

from aspc.errors import AspcError


@dataclass(frozen=True)
class FQEOptions:
    """How the critics are fitted."""

    discount: float = 0.99
    """Discount factor γ of the value that is estimated."""
    steps: int = 20_000
    """Minibatches for each policy."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    hidden_dim: int = 256
    """Width of the critics' hidden layers (ReLU, LayerNorm)."""
    hidden_layers: int = 2
    """Number of the critics' hidden layers."""
    critics: int = 2
    """Critics for each policy; their spread is part of the answer."""
    learning_rate: float = 1e-3
    """Learning rate (Adam); it decays to 0 by a cosine."""
    tau: float = 0.05
    """Target update rate. An estimate approaches its end by a factor e every 1/(tau·(1 − γ)) steps."""
    max_rows: int = 500_000
    """Transitions to learn from; of a larger dataset so many are drawn."""
    seed: int = 0
    """Seed of networks, minibatches, and of the noise of policies that sample."""

    def __post_init__(self) -> None:
        if not 0 < self.discount < 1:
            raise AspcError(f"--discount must lie between 0 and 1, not {self.discount}.")
        for name in ("steps", "batch_size", "hidden_dim", "hidden_layers", "critics", "max_rows"):
            if getattr(self, name) < 1:
                raise AspcError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
