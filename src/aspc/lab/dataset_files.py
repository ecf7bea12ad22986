"""Find and load the datasets for `aspc bench`: files in the --data folder, or datasets known by name."""

from __future__ import annotations

from pathlib import Path

from aspc import tasks
from aspc.data import Dataset, writers
from aspc.data.readers import formats
from aspc.errors import AspcError
from aspc.training.run_config import fingerprint


def find_dataset_files(folder: Path) -> dict[str, Path]:
    """Map the names of the datasets in a folder to their files.

    A file is named after its dataset: `hopper_medium-v2.hdf5` contains hopper-medium-v2. An NPZ file with the name of
    an OGBench file (`antmaze-large-navigate-v0.npz`) provides all singletask datasets of that file. OGBench's
    validation files are ignored.

    Raises:
        AspcError: The folder does not exist, contains no datasets, or contains two files for the same dataset.
    """
    if not folder.is_dir():
        raise AspcError(
            f"Folder {folder} does not exist. --data takes a folder of dataset files in the D4RL or OGBench layout."
        )
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((s for s in formats.SUFFIXES if path.name.lower().endswith(s)), None)
        if suffix is None or not path.is_file():
            continue
        stem = path.name[: -len(suffix)].lower().replace("_", "-")
        names = tasks.ogbench_tasks_of_file(stem) if suffix == ".npz" else None
        for name in [stem] if names is None else names:
            if name in found:
                raise AspcError(
                    f"Duplicate dataset {stem} in {folder}: {found[name].name} and {path.name}. Remove one."
                )
            found[name] = path.absolute()
    if not found:
        raise AspcError(f"{folder} contains no datasets: no file name ends in {', '.join(formats.SUFFIXES)}.")
    return found


def load_dataset(name: str, file: str | None) -> Dataset:
    """Load a dataset from its file, or by name if `file` is None.

    A file named after a D4RL dataset is split into transitions as in D4RL. The file of an OGBench singletask dataset
    is loaded with the rewards of that task.
    """
    from aspc import data

    if file is None:
        return data.load(name)
    if name in tasks.d4rl_datasets() or tasks.is_ogbench_task(name):
        return data.load(name, path=Path(file))
    return data.load(file, name=name)


def fingerprint_dataset(data: Dataset) -> str:
    """Return a hash of a dataset's content, independent of its name and of the algorithm."""
    return fingerprint(*writers.dataset_arrays(data).values(), data.action_low, data.action_high)
