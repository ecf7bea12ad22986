"""Simulate a decision log: at each of 20 visits, a clinic chooses one of the allowed doses for a patient.

    python examples/dosing_logs.py                        write dosing.csv with 1,000 patients
    python examples/dosing_logs.py --evaluate doses.onnx  evaluate a policy and the clinic on new patients

A dose is "none", "low" or "high". The level of the drug in the blood determines whether "low" and "high" are allowed.
If they are, the columns `mask_low` and `mask_high` are 1. Unlike with real logs, the true return of a policy can be
measured.
"""

import argparse
import csv
from collections.abc import Callable

import numpy as np

DOSES = {"none": 0.0, "low": 0.3, "high": 0.6}
NAMES = list(DOSES)
COLUMNS = ["episode", "obs_symptoms", "obs_level", "mask_low", "mask_high", "action_dose", "reward"]
VISITS = 20

Choose = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (observations, masks) → indices of doses, one per patient


def masks_of(level: np.ndarray) -> np.ndarray:
    """Return the masks of "low" and "high" as an array [patients, 2]."""
    return np.stack([level < 0.55, level < 0.35], axis=1).astype(float)


def clinic(rng: np.random.Generator) -> Choose:
    """Return the clinic's policy: higher doses for stronger symptoms, but many are too low, and some are random."""

    def choose(observations: np.ndarray, masks: np.ndarray) -> np.ndarray:
        symptoms = observations[:, 0] + rng.normal(0, 0.25, len(observations))
        wanted = (symptoms > 0.6).astype(int) + (symptoms > 1.1)
        wanted = np.where(rng.random(len(wanted)) < 0.25, rng.integers(0, 3, len(wanted)), wanted)
        return np.minimum(wanted, masks.sum(axis=1).astype(int))

    return choose


def treat(choose: Choose, patients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return one array [patients, columns] per visit. Doses are indices."""
    symptoms, level, visits = rng.uniform(0.2, 1.5, patients), rng.uniform(0, 0.6, patients), []
    for _ in range(VISITS):
        observations, masks = np.stack([symptoms, level], axis=1), masks_of(level)
        dose = choose(observations, masks)
        assert (np.concatenate([np.ones((patients, 1)), masks], axis=1)[np.arange(patients), dose] == 1).all()
        level = 0.6 * level + np.array(list(DOSES.values()))[dose]
        symptoms = np.clip(symptoms + 0.15 - 0.3 * level + rng.normal(0, 0.05, patients), 0, 2)
        rewards = 1 - symptoms - 0.5 * level**2  # penalizes symptoms and side effects
        visits.append(np.concatenate([observations, masks, dose[:, None], rewards[:, None]], axis=1))
    return visits


def write_log(path: str, patients: int, seed: int) -> None:
    """Write the clinic's log, one patient after another."""
    rng = np.random.default_rng(seed)
    visits = np.stack(treat(clinic(rng), patients, rng), axis=1)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for i, rows in enumerate(visits):
            for symptoms, level, low, high, dose, reward in rows:
                writer.writerow(
                    [i, f"{symptoms:.4f}", f"{level:.4f}", int(low), int(high), NAMES[int(dose)], f"{reward:.4f}"]
                )


def exported_policy(path: str) -> Choose:
    """Load an exported ONNX policy, whose options are sorted by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    order = np.array([NAMES.index(name) for name in sorted(NAMES)])

    def choose(observations: np.ndarray, masks: np.ndarray) -> np.ndarray:
        rows = np.concatenate([observations, masks], axis=1).astype(np.float32)
        (chosen,) = session.run(["choices"], {"observations": rows})
        return order[chosen[:, 0]]

    return choose


def evaluate(path: str) -> None:
    """Print the mean rewards per visit of an exported policy and of the clinic for the same new patients."""
    for name, choose in (("policy", exported_policy(path)), ("clinic", clinic(np.random.default_rng(2)))):
        rewards = np.stack(treat(choose, 2_000, np.random.default_rng(1)))[..., -1]
        print(f"{name}: {rewards.mean():.3f} per visit")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=1_000, help="number of patients in the log")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--evaluate", metavar="ONNX", help="exported policy to evaluate instead of writing a log")
    options = parser.parse_args()
    if options.evaluate:
        evaluate(options.evaluate)
    else:
        write_log("dosing.csv", options.patients, options.seed)
