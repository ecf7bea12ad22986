"""Simulate the logs of an oven in a plant, whose temperature is controlled by operators.

    python examples/plant_logs.py                         write plant.csv with 200 shifts of 100 minutes
    python examples/plant_logs.py --export                write export.csv, which looks like a control system's export:
                                                          newest rows first, times and costs, missing rows and cells
    python examples/plant_logs.py --evaluate plant.onnx   evaluate an exported policy and the operators

Unlike with real logs, the true return of a policy can be measured.
"""

import argparse
import csv
from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

COLUMNS = ["obs_temperature", "obs_target", "obs_outside", "action_heater", "action_fan", "reward", "episode"]
EXPORT_COLUMNS = ["timestamp", "oven [°C]", "target [°C]", "outside [°C]", "heater [%]", "fan [%]", "cost"]
MINUTES = 100
PAUSE_MINUTES = 380  # between two shifts
LOST_ROWS, LOST_CELLS = 0.02, 0.01  # fractions that are missing in an export

Controller = Callable[[np.ndarray], np.ndarray]  # (temperature, target, outside) → (heater, fan) in percent


def make_operator(rng: np.random.Generator) -> Controller:
    """Return an operator with a random gain who reads the gauge with a random error."""
    gain, reading_error = rng.uniform(0.5, 8), rng.normal(0, 6)

    def control(observation: np.ndarray) -> np.ndarray:
        temperature, target, _ = observation
        effort = gain * (target + reading_error - temperature) + rng.normal(0, 15)
        return np.asarray(np.clip([effort, -effort], 0, 100))

    return control


def simulate_shift(control: Controller, rng: np.random.Generator) -> list[list[float]]:
    """Return one row per minute, with the observation, the action and the reward (at most 1)."""
    temperature, target, outside = rng.uniform(20, 80), rng.uniform(40, 70), rng.normal(15, 5)
    rows = []
    for _ in range(MINUTES):
        observation = np.array([temperature, target, outside])
        heater, fan = control(observation)
        reward = max(0, 1 - abs(temperature - target) / 20) - (heater + fan) / 1000  # near the target, with low power
        rows.append([*observation.round(3), round(heater, 2), round(fan, 2), round(reward, 4)])
        temperature += 0.06 * heater - 0.06 * fan - 0.05 * (temperature - outside) + rng.normal(0, 0.3)
        outside += rng.normal(0, 0.2)
    return rows


def write_logs(path: str, shifts: int) -> None:
    """Write the logs of several shifts as a CSV file."""
    rng = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for number in range(shifts):
            table.writerows([*row, number] for row in simulate_shift(make_operator(rng), rng))
    print(f"{path}: {shifts} shifts, {shifts * MINUTES:,} rows")


def write_export(path: str, shifts: int) -> None:
    """Write the logs in the format of a control system's export, with costs (1 − reward) instead of rewards."""
    rng, losses = np.random.default_rng(0), np.random.default_rng(1)
    rows, start = [], datetime(2026, 1, 1, 6)
    for _ in range(shifts):
        for minute, row in enumerate(simulate_shift(make_operator(rng), rng)):
            observation = ["" if losses.random() < LOST_CELLS else value for value in row[:3]]
            if losses.random() >= LOST_ROWS:
                rows.append([start + timedelta(minutes=minute), *observation, *row[3:5], round(1 - row[5], 4)])
        start += timedelta(minutes=MINUTES + PAUSE_MINUTES)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(EXPORT_COLUMNS)
        table.writerows(reversed(rows))
    print(f"{path}: {shifts} shifts, {len(rows):,} rows")


def evaluate(path: str, shifts: int) -> None:
    """Print the mean returns of the operators and of an exported policy."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)

    def policy(observation: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {"observations": observation[None].astype(np.float32)})[0][0])

    rng = np.random.default_rng(1)
    for name, make_controller in (("operators", make_operator), ("policy", lambda _: policy)):
        rewards = [[row[5] for row in simulate_shift(make_controller(rng), rng)] for _ in range(shifts)]
        print(f"{name:10s} mean return of {shifts} shifts: {np.sum(rewards, axis=1).mean():6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="output file (default: plant.csv, or export.csv with --export)")
    parser.add_argument("--export", action="store_true", help="write logs in the format of a control system's export")
    parser.add_argument("--shifts", type=int, default=200, help="number of shifts")
    parser.add_argument("--evaluate", metavar="POLICY.onnx", help="evaluate this policy instead of writing logs")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args.evaluate, args.shifts)
    elif args.export:
        write_export(args.out or "export.csv", args.shifts)
    else:
        write_logs(args.out or "plant.csv", args.shifts)
