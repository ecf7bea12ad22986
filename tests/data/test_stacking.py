"""Stacked observations equal a slow reference, in memory and streamed, and never cross the start of an episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_logs import make_log

from aspc.data import packing
from aspc.data.dataset import Dataset, Transitions
from aspc.data.history import FrameStacker, stack_dataset
from aspc.data.packing import pack
from aspc.data.streaming import EPISODES, StreamingDataset, packed_layout
from aspc.errors import AspcError
from aspc.history import History

HISTORIES = (History(1), History(2), History(4), History(4, actions=True), History(9, actions=True))


def log_of(with_next: bool, rows: int = 200) -> Dataset:
    """Episodes of several lengths (also of one row) that end by terminals, by timeouts and with the data."""
    log = make_log(rows=rows)
    rng = np.random.default_rng(3)
    log["observations"][:, 0] = np.arange(rows)
    log["terminals"], log["timeouts"] = rng.random((2, rows)) < 0.08
    log["timeouts"] &= ~log["terminals"]
    log["terminals"][-1] = log["timeouts"][-1] = False
    log["terminals"][[40, 41]] = True
    log["timeouts"][[60, 61]] = True
    log["terminals"][[60, 61]] = False
    if with_next:
        log["next_observations"] = log["observations"] + rng.normal(size=log["observations"].shape).astype(np.float32)
    return Dataset.from_arrays(**log, action_low=-2, action_high=[3] * log["actions"].shape[1], name="log")


def slow_stack(data: Dataset, row: int, history: History, following: np.ndarray | None = None) -> np.ndarray:
    """Return the stacked observation at a row, or that after the row whose next observation is `following`."""
    first = row
    while first > 0 and not (data.terminals[first - 1] or data.timeouts[first - 1]):
        first -= 1
    seen = [data.observations[i] for i in range(first, row + 1)] + ([] if following is None else [following])
    center, half = (data.action_high + data.action_low) / 2, (data.action_high - data.action_low) / 2
    actions = [(data.actions[i] - center) / half for i in range(first, row + (following is not None))]
    while len(seen) < history.observations:
        seen.insert(0, seen[0])
        actions.insert(0, np.zeros_like(center))
    frames = seen[::-1][: history.observations]
    lagged = actions[::-1][: history.lags] if history.actions else []
    return np.concatenate([*frames, *lagged])


@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("with_next", [False, True])
def test_stacked_transitions_equal_a_slow_reference(history: History, n_step: int, with_next: bool) -> None:
    data = log_of(with_next)
    single, (rows, final) = data.transitions(n_step=n_step), data.transition_rows(n_step)
    stacked = FrameStacker.of(data, history).stack(single, rows, final)
    for i, (row, last) in enumerate(zip(rows, final, strict=True)):
        np.testing.assert_allclose(stacked.observations[i], slow_stack(data, row, history), atol=1e-6)
        expected = slow_stack(data, last, history, single.next_observations[i])
        np.testing.assert_allclose(stacked.next_observations[i], expected, atol=1e-6)
    for name in ("actions", "rewards", "terminals", "next_actions", "discounts"):
        np.testing.assert_array_equal(getattr(stacked, name), getattr(single, name))
    again = stack_dataset(data, history).transitions(n_step=n_step)
    for name, array in stacked._asdict().items():
        usable = single.terminals == 0 if name == "next_observations" else slice(None)  # undefined after terminals
        np.testing.assert_array_equal(getattr(again, name)[usable], array[usable], err_msg=name)


def test_a_history_of_one_observation_is_the_dataset_itself() -> None:
    data = log_of(with_next=False)
    assert stack_dataset(data, History(1)) is data


def test_selecting_rows_cuts_histories_at_the_gaps() -> None:
    data = log_of(with_next=False)
    data = replace(data, terminals=np.zeros(200, bool), timeouts=np.zeros(200, bool))
    part = data.select(np.r_[0:10, 50:60])
    stacked = FrameStacker.of(part, History(3)).at(np.arange(20))
    np.testing.assert_array_equal(stacked[10, :: part.observation_size], [50, 50, 50])
    np.testing.assert_array_equal(stacked[12, :: part.observation_size], [52, 51, 50])


@pytest.mark.parametrize("history", HISTORIES[1:], ids=str)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("with_next", [False, True])
@pytest.mark.parametrize("rows", [200, 9])
def test_windows_contain_the_stacked_transitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: History, n_step: int, with_next: bool, rows: int
) -> None:
    """Every row of a window is a row of the transitions stacked in memory, for blocks that start anywhere."""
    monkeypatch.setattr(packing, "SLAB_ROWS", 17)  # slabs that cut episodes anywhere
    data = log_of(with_next)
    data = data.select(np.arange(rows)) if rows < 200 else data
    packed = pack(data, tmp_path / "p", n_step=n_step, discount=0.9)
    transitions = data.transitions(n_step=n_step, discount=0.9)
    stacked = FrameStacker.of(data, history).stack(transitions, *data.transition_rows(n_step))
    layout = packed_layout(stacked.observations.shape[1], data.action_size)
    expected = {int(row[0]): row for row in layout.pack(stacked._asdict())}  # the first entry is the row's number
    seen: set[int] = set()
    with packed.windows(64, block_rows=8, history=history) as windows:
        for _ in range(12):
            for row in next(windows):
                np.testing.assert_array_equal(row, expected[int(row[0])])
                seen.add(int(row[0]))
    assert seen == set(expected)


def test_windows_pass_stacked_transitions_to_prepare(tmp_path: Path) -> None:
    data, history = log_of(with_next=False), History(3, actions=True)
    packed = pack(data, tmp_path / "p")

    def prepare(transitions: Transitions) -> np.ndarray:
        assert transitions.observations.shape[1] == history.size(data.observation_size, data.action_size)
        return transitions.next_observations

    with packed.windows(64, prepare=prepare, history=history) as windows:
        assert next(windows).shape == (64, history.size(data.observation_size, data.action_size))


def test_a_budget_counts_stacked_rows(tmp_path: Path) -> None:
    packed = pack(log_of(with_next=False), tmp_path / "p")
    one, four = (4 * packed.window_rows(20_000, History(n)) for n in (1, 4))
    assert one > four
    with pytest.raises(AspcError, match="is too small"):
        packed.window_rows(20_000, History(30))


def test_folders_without_valid_episode_starts_are_refused(tmp_path: Path) -> None:
    packed = pack(log_of(with_next=False), tmp_path / "p")
    starts = packed.episode_starts()
    for content in (b"123", (starts + 1).tobytes(), starts[::-1].tobytes(), b"", np.arange(999).tobytes()):
        (tmp_path / "p" / EPISODES).write_bytes(content)
        with pytest.raises(AspcError, match="damaged; pack the data again"):
            packed.episode_starts()
    (tmp_path / "p" / EPISODES).unlink()
    again = StreamingDataset.open(tmp_path / "p")  # as packed by an older version
    with again.windows(64) as windows:
        next(windows)
    with pytest.raises(AspcError, match="without the starts of its episodes; pack the data again"):
        again.windows(64, history=History(2))
