"""Minari's local store: ids, folders, metadata and downloads. This module never creates an environment."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aspc.errors import AspcError, MissingExtra
from aspc.io import read_bounded_json

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PREFIX = "minari:"  # distinguishes Minari ids from other dataset names
METADATA = "metadata.json"
CHOICES_KEY = "aspc_action_space"  # metadata key for the names and masks in datasets that this library has written


def import_minari() -> Any:
    """Import the package `minari`."""
    try:
        import minari
    except ImportError as error:
        raise MissingExtra("Minari datasets", "minari") from error
    return minari


def parse_id(name: str) -> str:
    """Return the Minari id in a name, without the prefix."""
    return name.removeprefix(PREFIX)


def is_id(name: str) -> bool:
    """Return whether a name is a Minari id: it has the prefix, or a namespace and a version."""
    return name.startswith(PREFIX) or ("/" in name and re.search(r"-v\d+$", name) is not None)


def data_folder(name: str) -> Path:
    """Return the folder of a dataset's files in the store, which may not exist."""
    import_minari()
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path(parse_id(name)), "data")


def is_local(name: str) -> bool:
    """Return whether a dataset is in the store."""
    return os.path.exists(data_folder(name))  # Path.exists raises an error if the name is too long


def check_metadata(folder: Path) -> None:
    """Raise ValueError if the metadata is too large, or has no observation or action space.

    Without a space, Minari would create the environment to obtain it.
    """
    metadata = read_bounded_json(folder / METADATA)
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
            raise ValueError(f"its metadata has no {key}")


def open_dataset(name: str) -> Any:
    """Open a `minari.MinariDataset`, downloading it if it is not in the store.

    Raises:
        AspcError: The dataset is damaged or cannot be downloaded.
    """
    minari, dataset_id = import_minari(), parse_id(name)
    try:
        if is_local(name):
            return _open_local(name)
    except Exception as error:  # a damaged folder can raise many kinds of errors
        raise AspcError(f"The Minari dataset {dataset_id} cannot be read: {error}") from error
    advice = f"run `minari download {dataset_id}` on a machine with network access and copy its folder"
    if not _is_online():
        raise AspcError(f"The Minari dataset {dataset_id} is not on this machine and there is no network; {advice}.")
    try:
        minari.download_dataset(dataset_id)
        return _open_local(name)
    except Exception as error:  # the hub client raises errors from many packages
        detail = " ".join(str(error).split())[:200]
        raise AspcError(f"The Minari dataset {dataset_id} could not be downloaded ({detail}); {advice}.") from error


def _open_local(name: str) -> Any:
    check_metadata(data_folder(name))
    return import_minari().load_dataset(parse_id(name))


def _is_online() -> bool:
    """Return whether the hub's host name can be resolved. Minari itself would retry for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        return False
    return True


def download_if_missing(name: str) -> Path:
    """Return the folder of a dataset's files, downloading the dataset if it is not in the store."""
    if not is_local(name):
        open_dataset(name)
    return data_folder(name)


def evaluation_spec(dataset: Any) -> EnvSpec | None:
    """Return the spec of the evaluation environment, or else of the environment that generated the data."""
    spec: EnvSpec | None = getattr(dataset, "_eval_env_spec", None) or dataset.env_spec
    return spec


def reference_scores(name: str) -> tuple[float, float] | None:
    """Return the reference scores in a dataset's metadata, or None if it has none."""
    try:
        metadata = read_bounded_json(download_if_missing(name) / METADATA)
        low, high = (metadata.get(f"ref_{end}_score") for end in ("min", "max"))
        return None if low is None or high is None else (float(low), float(high))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AspcError(f"The Minari dataset {parse_id(name)} cannot be read: its {METADATA} is damaged.") from error
