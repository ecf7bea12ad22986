"""A policy prepared for the trust report: its actions at logged states and, if its run is available, its critics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from aspc.assessment.device_policy import act_on_rows, check_fits
from aspc.assessment.trained_runs import Trained, home_of
from aspc.data import Dataset
from aspc.data.history import FrameStacker
from aspc.errors import AspcError
from aspc.history import NEWEST_ONLY
from aspc.io import read_json
from aspc.policy import Policy
from aspc.policy_guards import describe_guards
from aspc.training.compiled_loop import tree_index
from aspc.training.normalizer import ObservationNormalizer
from aspc.training.run_folder import CONFIG, Run

NumpyCritics = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class InspectedPolicy:
    """A policy with its actions at a sample of logged states, its run, and the training state that it comes from."""

    name: str
    policy: Policy
    dataset: Dataset
    rows: np.ndarray
    """The sampled rows of the dataset."""
    actions: np.ndarray
    """π(s) at these rows, in [-1, 1]."""
    trained: Trained | None
    """The run of the policy, if its folder is known."""
    state: Any
    """The training state that the policy was exported from; None without a checkpoint."""
    missing_state_reason: str = ""

    @classmethod
    def load(cls, folder: Path, dataset: Dataset, states: int = 2_000) -> InspectedPolicy:
        """Load the policy in a folder and evaluate it at random rows of a dataset.

        Raises:
            AspcError: If the policy's sizes or columns differ from the dataset's.
        """
        if states < 1:
            raise AspcError(f"--states must be at least 1, not {states}.")
        policy = Policy.load(folder)
        name = str(folder)
        if home_of(folder) is not None:  # name the policy by its run and seed
            name = str(Path(*(part for part in folder.absolute().parts[-3:] if part != "policy")))
        check_fits(name, policy, dataset)
        # The critics were trained in the policy's units, regardless of this dataset's action bounds.
        dataset = replace(dataset, action_low=policy.action_low, action_high=policy.action_high)
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(len(dataset), min(states, len(dataset)), replace=False))
        actions = dataset.scale_actions(act_on_rows(policy, dataset, rows, rng))
        trained, state, reason = _restore_state(folder, policy, dataset)
        return cls(name, policy, dataset, rows, actions, trained, state, reason)

    @property
    def observations(self) -> np.ndarray:
        """The sampled states, with the policy's history."""
        return FrameStacker.of(self.dataset, self.policy.history).at(self.rows)

    @property
    def logged_actions(self) -> np.ndarray:
        """The logged actions at the sampled rows, in [-1, 1]."""
        return self.dataset.scale_actions(self.dataset.actions[self.rows])

    @property
    def seed(self) -> int:
        """The seed of the policy's run."""
        return int(self.policy.info.get("seed", 0))

    @property
    def critics(self) -> NumpyCritics | None:
        """A function (observations, actions in [-1, 1]) → Q [critics, rows]; None without critics."""
        if self.trained is None or self.state is None:
            return None
        critics = self.trained.algorithm.critics(self.state)
        if critics is None:
            return None
        single = ObservationNormalizer(self.policy.observation_mean, self.policy.observation_std)
        normalize = single.stacked(self.policy.history, self.policy.action_size)
        return lambda s, a: np.asarray(critics(jnp.asarray(normalize(s)), jnp.asarray(a, jnp.float32)), np.float64)

    @property
    def missing_critics_reason(self) -> str:
        """A sentence that explains why there are no critics."""
        if self.state is None:
            return f"Not computed: {self.missing_state_reason}."
        return f"{self.policy.info.get('algo', 'This algorithm')} learns no Q-function."

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of the log's action columns; empty if the policy's file has no valid names."""
        return self.policy.action_names

    def describe(self) -> list[tuple[str, str]]:
        """Return the origin of the policy and of the data as (label, value) pairs."""
        info = self.policy.info
        rows = [
            ("policy", self.name),
            ("algorithm", str(info.get("algo", "unknown"))),
            ("trained on", str(info.get("dataset", "unknown"))),
            ("steps", f"{info['step']:,}" if isinstance(info.get("step"), int) else "unknown"),
            ("inspected with", f"{self.dataset.name}: {len(self.rows):,} of {len(self.dataset):,} logged states"),
        ]
        if self.policy.history != NEWEST_ONLY:
            rows.append(("history", self.policy.history.describe()))
        if self.policy.guards is not None:
            rows.append(("guards", "; ".join(describe_guards(self.policy.guards, self.action_names))))
        if self.trained is not None and not self.trained.same_data:
            rows.append(("note", "the rows of this dataset are not exactly those that the run was trained on"))
        return rows


def _run_of_selected(policy: Policy) -> Path | None:
    """Return the run from which `--select` took a policy, if that run still exists."""
    chosen = policy.info.get("chosen")
    run = chosen.get("run") if isinstance(chosen, dict) else None
    return home_of(Path(run)) if isinstance(run, str) and Path(run).is_dir() else None


def _restore_state(folder: Path, policy: Policy, dataset: Dataset) -> tuple[Trained | None, Any, str]:
    """Return the run and the training state of a saved policy, and the reason if the state is unavailable."""
    home = home_of(folder) or _run_of_selected(policy)
    if home is None or "members" in read_json(home / CONFIG):
        return None, None, "the policy is not in the folder of a run, so its critics are unavailable"
    trained = Trained.of(Run(home), dataset)
    seed, step = policy.info.get("seed"), policy.info.get("step")
    if step not in trained.checkpoint_steps() or seed not in trained.run.seeds:
        return trained, None, f"the run has no checkpoint of step {step}, so its critics are unavailable"
    state = tree_index(trained.states([step])[step], trained.run.seeds.index(seed))
    return trained, state, ""
