"""Logs of a made-up plant, to try things on: an oven that operators hold at a temperature.

    python examples/plant_logs.py                      writes plant.csv: 200 shifts of 100 minutes
    python examples/plant_logs.py --judge plant.onnx   runs an exported policy in the oven, beside the operators

With logs of your own there is no oven to judge in; here there is one, so that you can see what a policy is worth.
"""

import argparse
import csv
from collections.abc import Callable

import numpy as np

COLUMNS = ["obs_temperature", "obs_target", "obs_outside", "action_heater", "action_fan", "reward", "episode"]
MINUTES = 100

Controller = Callable[[np.ndarray], np.ndarray]  # (temperature, target, outside) → (heater, fan), in percent


def operator(rng: np.random.Generator) -> Controller:
    """Each has a habit of their own: how hard they push, and by how much they misread the gauge."""
    push, misread = rng.uniform(0.5, 8), rng.normal(0, 6)

    def control(observation: np.ndarray) -> np.ndarray:
        temperature, target, _ = observation
        effort = push * (target + misread - temperature) + rng.normal(0, 15)
        return np.clip([effort, -effort], 0, 100)

    return control


def shift(control: Controller, rng: np.random.Generator) -> list[list[float]]:
    """One shift, a row each minute: what was seen, what was done, and how good that minute was (1 is best)."""
    temperature, target, outside = rng.uniform(20, 80), rng.uniform(40, 70), rng.normal(15, 5)
    rows = []
    for _ in range(MINUTES):
        observation = np.array([temperature, target, outside])
        heater, fan = control(observation)
        reward = max(0, 1 - abs(temperature - target) / 20) - (heater + fan) / 1000  # on target, with little power
        rows.append([*observation.round(3), round(heater, 2), round(fan, 2), round(reward, 4)])
        temperature += 0.06 * heater - 0.06 * fan - 0.05 * (temperature - outside) + rng.normal(0, 0.3)
        outside += rng.normal(0, 0.2)
    return rows


def write_logs(path: str, shifts: int) -> None:
    rng = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for number in range(shifts):
            table.writerows([*row, number] for row in shift(operator(rng), rng))
    print(f"{path}: {shifts} shifts, {shifts * MINUTES:,} rows")


def judge(path: str, shifts: int) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)

    def policy(observation: np.ndarray) -> np.ndarray:
        return session.run(None, {"observations": observation[None].astype(np.float32)})[0][0]

    rng = np.random.default_rng(1)
    for name, hire in (("operators", operator), ("policy", lambda rng: policy)):
        rewards = [[row[5] for row in shift(hire(rng), rng)] for _ in range(shifts)]
        print(f"{name:10s} mean return of {shifts} shifts: {np.sum(rewards, axis=1).mean():6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="plant.csv", help="file to write")
    parser.add_argument("--shifts", type=int, default=200, help="how many shifts")
    parser.add_argument("--judge", metavar="POLICY.onnx", help="an exported policy to run instead")
    asked = parser.parse_args()
    judge(asked.judge, asked.shifts) if asked.judge else write_logs(asked.out, asked.shifts)
