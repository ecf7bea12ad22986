"""Ctrl-C and SIGTERM at any time: during imports, in callbacks, and at the very end."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from small_runs import write_logs

from aspc.__main__ import run_reporting_errors
from aspc.interrupts import RESEND_SECONDS
from waiting import DEADLINE_SECONDS, wait_until

SMALL = ["--algo", "bc", "--env", "none", "--log-every", "50", "--actor-hidden-dim", "8", "--batch-size", "8"]


def start(*words: object) -> subprocess.Popen[str]:
    """Start a command and wait until it handles signals: Python itself never handles SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aspc", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: handles(process.pid, signal.SIGTERM), process)
    return process


def handles(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see signal handlers")


# ── in this process ─────────────────────────────────────────────────────────────────────────────────────────────────


def slow_module(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "slow_module.py").write_text(body)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "slow_module", raising=False)


@pytest.mark.parametrize(("number", "code", "message"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_a_signal_during_an_import_is_deferred_to_its_end(
    number: int,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The imported module would swallow the interrupt, as some do."""
    body = (
        "import signal\ntry:\n    signal.raise_signal({})\n    ended = True\nexcept BaseException:\n    ended = False\n"
    )
    slow_module(tmp_path, monkeypatch, body.format(number))
    reached: list[str] = []

    def work() -> int:
        import slow_module  # type: ignore[import-not-found]

        reached.append(f"import ended: {slow_module.ended}")
        threading.Event().wait(60)
        reached.append("continued")
        return 0

    assert run_reporting_errors(work) == code
    assert reached == ["import ended: True"]
    assert capfd.readouterr().err == f"aspc: {message}.\n"


def test_handled_interrupt_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The handler of a training may receive a signal that an import has deferred."""
    slow_module(tmp_path, monkeypatch, "import signal\nsignal.raise_signal(signal.SIGINT)\n")

    def work() -> int:
        obeyed = threading.Event()
        import slow_module  # noqa: F401

        before = signal.signal(signal.SIGINT, lambda *_: obeyed.set())
        try:
            assert obeyed.wait(60)
        finally:
            signal.signal(signal.SIGINT, before)
        print("aspc: Stopped at step 50.", file=sys.stderr)
        return 130

    assert run_reporting_errors(work) == 130
    assert capfd.readouterr().err == "aspc: Stopped at step 50.\n"


def test_repeated_signals_interrupt_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import may hang, for example in a plugin."""
    slow_module(tmp_path, monkeypatch, "import signal\nwhile True:\n    signal.raise_signal(signal.SIGINT)\n")

    def work() -> int:
        import slow_module  # noqa: F401

        return 0

    assert run_reporting_errors(work) == 130


def collect_with(callback_body) -> None:  # type: ignore[no-untyped-def]
    def callback(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(callback)
        callback_body()

    gc.callbacks.append(callback)
    gc.collect(0)  # the callbacks run for any generation; a full collection takes a second in a large process


def test_ctrl_c_in_a_garbage_collector_callback_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """JAX has such a callback, and Python drops exceptions that are raised in one."""

    def work() -> int:
        collect_with(lambda: signal.raise_signal(signal.SIGINT))
        threading.Event().wait(60)
        return 0

    assert run_reporting_errors(work) == 130
    assert capfd.readouterr().err == "aspc: interrupted.\n"


def test_an_interrupt_that_misses_a_system_call_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal just before a call blocks does not interrupt it. The first one sent again is dropped here."""
    send, sent, reached = signal.pthread_kill, [], []

    def send_from_the_second_on(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            send(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", send_from_the_second_on)

    def work() -> int:
        collect_with(lambda: signal.raise_signal(signal.SIGINT))
        threading.Event().wait(60)
        reached.append("after the wait")
        return 0

    assert run_reporting_errors(work) == 130
    assert len(sent) > 1
    assert reached == []


def test_interrupt_reaches_a_new_handler_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training would take another one for a second Ctrl-C, and stop without saving."""
    slow_module(tmp_path, monkeypatch, "import signal\nsignal.raise_signal(signal.SIGINT)\n")
    send, is_sending, is_installed, received = signal.pthread_kill, threading.Event(), threading.Event(), []

    def send_after_installation(thread: int, number: int) -> None:
        is_sending.set()
        assert is_installed.wait(60)
        send(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", send_after_installation)

    def work() -> int:
        import slow_module  # noqa: F401

        assert is_sending.wait(60)
        before = signal.signal(signal.SIGINT, lambda *_: received.append("SIGINT"))
        is_installed.set()
        try:
            threading.Event().wait(20 * RESEND_SECONDS)
        finally:
            signal.signal(signal.SIGINT, before)
        return 130

    assert run_reporting_errors(work) == 130
    assert received == ["SIGINT"]


def test_an_interrupt_during_a_slow_hook_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hook that Python calls for dropped exceptions runs while the signal is sent again and again."""
    resent = 0

    def slow(_: object) -> None:
        nonlocal resent
        deadline = time.monotonic() + 60
        signal.raise_signal(signal.SIGINT)
        before = signal.getsignal(signal.SIGINT)

        def count(number: int, frame: object) -> None:
            nonlocal resent
            resent += 1
            before(number, frame)  # type: ignore[operator, misc]

        signal.signal(signal.SIGINT, count)
        try:
            while resent < 5 and time.monotonic() < deadline:
                time.sleep(0.001)
        finally:
            signal.signal(signal.SIGINT, before)

    monkeypatch.setattr(sys, "unraisablehook", slow)

    def work() -> int:
        collect_with(lambda: 1 / 0)
        threading.Event().wait(60)
        return 0

    assert run_reporting_errors(work) == 130
    assert resent >= 5
    assert capfd.readouterr().err == "aspc: interrupted.\n"


def test_an_interrupt_at_the_very_end_does_not_reach_the_caller() -> None:
    """The work ends before the signal is sent again: the exit code reports it, and no signal follows."""
    came_later: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came_later.append(number))
    hook, threads = sys.unraisablehook, threading.active_count()
    try:
        for _ in range(20):
            assert run_reporting_errors(lambda: collect_with(lambda: signal.raise_signal(signal.SIGINT))) == 130  # type: ignore[func-returns-value]
            assert threading.active_count() == threads  # no thread is left that could send it
        assert sys.unraisablehook is hook
    finally:
        signal.signal(signal.SIGINT, before)
    assert came_later == []


def test_handlers_of_the_caller_are_restored() -> None:
    def own(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        assert run_reporting_errors(lambda: 3) == 3
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored() -> None:
    """As in a background job of a shell script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_reporting_errors(lambda: signal.raise_signal(signal.SIGINT)) == 0  # type: ignore[func-returns-value]
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_library_installs_no_handlers() -> None:
    code = (
        "import signal\nbefore = [signal.getsignal(n) for n in (2, 15)]\n"
        "import aspc, aspc.__main__, aspc.training.run\n"
        "assert before == [signal.getsignal(n) for n in (2, 15)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ── whole commands ──────────────────────────────────────────────────────────────────────────────────────────────────


@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_right_at_the_start_ends_the_command(number: int, code: int, tmp_path: Path) -> None:
    process = start("train", write_logs(tmp_path / "logs.npz"), "--out", tmp_path / "run", *SMALL)
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code
    assert errors in ("aspc: interrupted.\n", "aspc: terminated.\n")
    assert not (tmp_path / "run").exists()


def test_an_interrupt_in_exec_ends_with_the_exit_code(tmp_path: Path) -> None:
    """CPython would kill the process, since it remembers an interrupt that left `exec`, even if handled."""
    (tmp_path / "interrupted_command.py").write_text(
        "import sys\n"
        "from aspc import __main__ as command\n"
        "def main(argv):\n"
        "    exec('raise KeyboardInterrupt')\n"
        "command.COMMANDS['work'] = ('interrupted_command', '')\n"
        "sys.argv = ['aspc', 'work']\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(command.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted_command"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "aspc: interrupted.\n")


@pytest.mark.slow
@needs_proc
def test_no_interrupt_while_starting_is_lost_or_crashes(tmp_path: Path) -> None:
    """ASPC_START_INTERRUPTS sets their number; they arrive at random times in the first two seconds."""
    rng, ends, count = random.Random(0), Counter[str](), int(os.environ.get("ASPC_START_INTERRUPTS", "40"))
    words = ["maze2d-umaze?steps=2000", "--steps", "1000000", *SMALL]  # far from its end when a signal arrives
    for i in range(count):
        number = rng.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM))
        process = start("train", *words, "--out", tmp_path / f"run{i}")
        try:
            process.wait(rng.uniform(0, 2))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert "Traceback" not in errors, errors
        assert "Exception ignored" not in errors, errors
        assert process.returncode == 128 + number, (i, process.returncode, errors)
        said = [line for line in errors.splitlines() if line.startswith("aspc: ")]
        assert len(said) == 1, errors
        ends[said[0].split(";")[0]] += 1
    print(f"\n{count} interrupts: {dict(ends)}")
