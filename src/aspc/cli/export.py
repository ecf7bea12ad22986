"""The command `aspc export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import Flag, Several, Unset, parse_options
from aspc.errors import AspcError, printable
from aspc.export import Format, OnInvalid, export
from aspc.policy import Policy, find_policy
from aspc.policy_guards import Guards, describe_guards

if TYPE_CHECKING:
    from aspc.policy_guards import OODScore

COMMON_OPTIONS = "format out seed force on-invalid bound rate-limit ood fallback dataset"  # shown by --help


@dataclass(frozen=True)
class Export:
    """Export a policy as ONNX, StableHLO or plain NumPy, including its normalizer and action bounds, with optional
    guards."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or the folder of a single policy."""
    format: Format
    """Format to write: a graph for ONNX Runtime and similar runtimes (onnx), a program for JAX (stablehlo), a folder
    with a Python module that needs only NumPy (numpy), or an aspc policy folder, which can store guards (policy)."""
    out: Unset[Path] = None
    """Output path; required with --format policy. Default for the other formats: policy.onnx, policy.stablehlo or
    numpy/ in the policy's folder."""
    seed: Unset[int] = None
    """Seed of the run to export. Default: the run's first seed."""
    force: Flag = False
    """Replace an existing export."""
    on_invalid: Unset[OnInvalid] = None
    """Behavior for observations with NaN, infinite or missing entries: raise an error, hold the last action, or return
    NaN. Default: the setting saved with the policy (raise, unless you changed it). An ONNX file always returns NaN."""
    bound: Several[str] = ()
    """Guard: limit actions to tighter bounds, as in valve=10:80 or valve=10: (in the units of the logs). Refer to
    unnamed actions by number, starting at 1. Guard options replace the guards saved with the policy."""
    rate_limit: Several[str] = ()
    """Guard: limit the change of an action per step, as in valve=5."""
    start_action: Several[str] = ()
    """Guard: set the action that counts as the previous one in the first step, as in valve=30 fan=0. By default there
    is none, so the rate limit does not apply to the first action."""
    ood: Unset[Literal["hold", "fallback", "nan"]] = None
    """Guard: for out-of-distribution (OOD) observations, repeat the previous action, or return NaN if there is none
    (hold), take the --fallback action (fallback), or return NaN (nan)."""
    ood_quantile: Unset[float] = None
    """Quantile of the logged observations' OOD scores from which the threshold for --ood is computed. Default:
    0.999."""
    ood_margin: Unset[float] = None
    """Factor by which this quantile is multiplied to obtain the threshold for --ood. Default: 1.1."""
    fallback: Several[str] = ()
    """Set the action for --ood fallback, as in valve=20 fan=0."""
    dataset: Unset[str] = None
    """Name or path of the data for --ood. Default: the data that the run was trained on; the threshold then comes from
    its held-out episodes, if there are any."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)


def main(argv: list[str]) -> int:
    """Run `aspc export`."""
    args = parse_options(Export, argv, "aspc export", common=COMMON_OPTIONS)
    folder = find_policy(args.run, args.seed)
    policy = Policy.load(folder)
    guards = parse_guards(args, folder, policy)
    path = export(folder, args.format, args.out, None, args.force, args.on_invalid, guards)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    print(f"{path} ({size / 1e6:.2f} MB)")
    if guards is not None:
        policy = policy.with_guards(guards)
    if policy.guards is not None:
        for line in describe_guards(policy.guards, policy.action_names):
            print(f"  guard  {printable(line)}")
    return 0


def parse_guards(args: Export, folder: Path, policy: Policy) -> Guards | None:
    """Return the guards that the options specify, or None.

    Raises:
        AspcError: An option is invalid, or the data for the score is missing.
    """
    from aspc.guards import named_actions

    for_score = (args.ood_quantile, args.ood_margin, args.dataset, args.source.options() or None)
    if args.ood is None and (args.fallback or any(value is not None for value in for_score)):
        raise AspcError("--fallback, --ood-quantile, --ood-margin, --dataset and its options require --ood.")
    if not any((args.bound, args.rate_limit, args.start_action, args.ood)):
        return None
    low, high = policy.action_low, policy.action_high
    bounds = [_split(word, "--bound") for word in args.bound]
    lows, highs = (
        {name: _number(parts[i], "--bound") for name, value in bounds if (parts := _ends(value))[i]} for i in (0, 1)
    )
    limits, start, fallback = (
        {name: _number(value, option) for name, value in (_split(word, option) for word in words)}
        for words, option in (
            (args.rate_limit, "--rate-limit"),
            (args.start_action, "--start-action"),
            (args.fallback, "--fallback"),
        )
    )
    return Guards(
        named_actions(policy, lows, "--bound", low),
        named_actions(policy, highs, "--bound", high),
        named_actions(policy, limits, "--rate-limit", high - low) if limits else None,
        named_actions(policy, start, "--start-action", None) if start else None,
        None if args.ood is None else _fit_score(args, folder, policy),
        args.ood,
        named_actions(policy, fallback, "--fallback", None) if fallback or args.ood == "fallback" else None,
    )


def _fit_score(args: Export, folder: Path, policy: Policy) -> OODScore:
    from aspc.assessment.device_policy import check_fits
    from aspc.assessment.trained_runs import dataset_of, holdout_of
    from aspc.guards import MARGIN, QUANTILE, fit_ood_score

    dataset, held_out = dataset_of([folder], args.dataset, args.source.options()), None
    check_fits(str(folder), policy, dataset)
    share = holdout_of(folder) if args.dataset is None else 0.0
    if share > 0:
        dataset, held_out = dataset.split(share, seed=0)
    quantile = QUANTILE if args.ood_quantile is None else args.ood_quantile
    return fit_ood_score(dataset, held_out, quantile, MARGIN if args.ood_margin is None else args.ood_margin)


def _split(word: str, option: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE; the name can contain an equals sign."""
    name, equals, value = word.rpartition("=")
    if not equals or not name or not value:
        raise AspcError(f"{option} takes NAME=VALUE, not {word!r}.")
    return name, value


def _ends(value: str) -> tuple[str, str]:
    """Return the two ends of LOW:HIGH, either of which can be empty."""
    low, colon, high = value.partition(":")
    if not colon or not (low or high):
        raise AspcError(f"--bound takes NAME=LOW:HIGH, NAME=LOW: or NAME=:HIGH, not {value!r} as the value.")
    return low, high


def _number(word: str, option: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise AspcError(f"{option} takes a number for each action, not {word!r}.")
    return number
