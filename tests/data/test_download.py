"""Downloads from a local server: interrupted, resumed, wrong, missing; never an incomplete final file."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_logs import make_log

from aspc import data, tasks, ui
from aspc.data import cache, download
from aspc.data.sources import d4rl as d4rl_files
from aspc.errors import AspcError

NAME = "maze2d-umaze-v1"  # no SHA-256 is published for it, so that other bytes can stand in for it
FILE = "maze2d-umaze-sparse-v1.hdf5"
TAIL = f"offline_rl/maze2d/{FILE}"
PINNED = "hopper-medium-v2"


class Server(http.server.ThreadingHTTPServer):
    """A server of one body that can truncate answers, ignore ranges, send bad headers or fail."""

    body = b""
    cut_after: int | None = None
    ranges = True
    status: int | None = None
    tag: str | None = "of the body"
    modified: str | None = None
    offset = 0
    """How far beyond the range that was asked for an answer begins."""
    total: int | None = None
    """The size that an answer to a range claims, if not the body's."""
    states_length = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append((self.path, wanted))
        tag = f'"{hashlib.md5(server.body).hexdigest()}"' if server.tag == "of the body" else server.tag
        known = tag or server.modified
        if server.status is not None:
            self.send_error(server.status)
            return
        start = 0
        if wanted and server.ranges and self.headers.get("If-Range", known) == known:
            start = int(wanted.removeprefix("bytes=").split("-")[0]) + server.offset
            if start >= len(server.body):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if server.states_length:
            self.send_header("Content-Length", str(len(server.body) - start))
        if start:
            total = len(server.body) if server.total is None else server.total
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        for header, value in (("ETag", tag), ("Last-Modified", server.modified)):
            if value is not None:
                self.send_header(header, value)
        self.end_headers()
        stop = len(server.body) if server.cut_after is None else start + server.cut_after
        self.wfile.write(server.body[start:stop])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "CHUNK", 4096)
    # the published address must never be asked in a test
    monkeypatch.setattr(download, "mirror_addresses", lambda url: REAL_MIRRORS(url)[:-1])
    with h5py.File(tmp_path / "body.hdf5", "w") as file:
        for key, array in make_log(rows=2000, observation=4, action=2).items():
            file[key] = array
    made = Server()
    made.body = (tmp_path / "body.hdf5").read_bytes()
    monkeypatch.setenv("ASPC_MIRRORS", f"{made.base}/mirror/")
    thread = threading.Thread(target=lambda: made.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


REAL_MIRRORS = download.mirror_addresses


def cached() -> list[str]:
    return sorted(p.name for p in (cache.root() / "d4rl").iterdir() if not p.name.endswith(".lock"))


def test_a_dataset_is_downloaded_once_and_loaded(server: Server) -> None:
    first = data.load(NAME)
    assert (first.name, first.env, first.ref_max) == (NAME, NAME, 161.86)
    assert (len(first), first.next_observations) == (2000, None)
    assert server.requests == [(f"/mirror/{TAIL}", None)]
    data.load(NAME)
    assert len(server.requests) == 1
    record = json.loads((d4rl_files.file_path(NAME).parent / f"{FILE}.json").read_text())
    assert record["size"] == len(server.body)
    assert record["sha256"] == hashlib.sha256(server.body).hexdigest()
    assert cached() == [FILE, f"{FILE}.json"]


def test_d4rl_loader_ignores_next_observations(server: Server, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "body.hdf5", "a") as file:
        file["next_observations"] = np.zeros((2000, 4), dtype=np.float32)
    server.body = (tmp_path / "body.hdf5").read_bytes()
    dataset = data.load(NAME)
    assert len(dataset.transitions().rewards) == 2000 - 100


def test_a_cut_download_is_resumed(server: Server) -> None:
    server.cut_after = len(server.body) // 2
    with pytest.raises(AspcError, match=r"cut at .* bytes"):
        data.load(NAME)
    assert FILE not in cached()
    server.cut_after = None
    data.load(NAME)
    assert server.requests[1] == (f"/mirror/{TAIL}", f"bytes={len(server.body) // 2}-")
    assert d4rl_files.file_path(NAME).read_bytes() == server.body


def cut_download(server: Server) -> None:
    server.cut_after = 1000
    with pytest.raises(AspcError, match="cut"):
        data.load(NAME)
    server.cut_after = None


@pytest.mark.parametrize("ranges", [True, False])
def test_a_changed_file_is_not_resumed(server: Server, ranges: bool) -> None:
    cut_download(server)
    server.ranges = ranges
    server.body = server.body + b"more"  # the published file has changed since
    download.fetch(f"{server.base}/datasets/{TAIL}", d4rl_files.file_path(NAME))
    assert d4rl_files.file_path(NAME).read_bytes() == server.body


ODD_SERVERS = {
    "no validator": {"tag": None},
    "a weak tag": {"tag": 'W/"1"'},
    "a validator that does not change": {"tag": '"always the same"', "offset": 7},
    "another range, and its own end": {"offset": 7},
    "another total": {"total": 999},
}


@pytest.mark.parametrize("odd", ODD_SERVERS)
def test_an_unverified_range_restarts_the_download(server: Server, odd: str) -> None:
    for key, value in ODD_SERVERS[odd].items():
        setattr(server, key, value)
    cut_download(server)
    if "validator" in odd or "weak" in odd:  # the published file has changed since, and the server cannot tell
        server.body = server.body[:-1] + b"!"
    if odd == "a validator that does not change":
        server.body += b"!"  # which its size tells
    assert download.fetch(f"{server.base}/datasets/{TAIL}", d4rl_files.file_path(NAME)).read_bytes() == server.body
    assert server.requests[-1][1] is None  # asked for as a whole


def test_last_modified_is_a_validator(server: Server) -> None:
    server.tag, server.modified = None, "Wed, 01 Jan 2020 00:00:00 GMT"
    cut_download(server)
    data.load(NAME)
    assert server.requests[-1][1] == "bytes=1000-"
    d4rl_files.file_path(NAME).unlink()
    (d4rl_files.file_path(NAME).parent / f"{FILE}.json").unlink()
    cut_download(server)
    server.modified, server.body = "Thu, 02 Jan 2020 00:00:00 GMT", server.body[:-1] + b"!"
    download.fetch(f"{server.base}/datasets/{TAIL}", d4rl_files.file_path(NAME))
    assert d4rl_files.file_path(NAME).read_bytes() == server.body


def test_a_part_from_one_address_is_not_continued_from_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_download(server)
    monkeypatch.setenv("ASPC_MIRRORS", f"{server.base}/other/")
    data.load(NAME)
    assert server.requests[-1] == (f"/other/{TAIL}", None)


def test_a_file_of_unknown_length_is_refused(server: Server) -> None:
    """If the end of the connection marks the end of the file, a truncated file looks complete."""
    server.states_length = False
    with pytest.raises(AspcError, match="did not report the file size"):
        data.load(NAME)
    published = download.Record(len(server.body), hashlib.sha256(server.body).hexdigest())
    path = d4rl_files.file_path(NAME)
    assert download.fetch(f"{server.base}/datasets/{TAIL}", path, published).read_bytes() == server.body


def test_an_invalid_http_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AspcError, match="could not be downloaded"):
            download.fetch(f"http://127.0.0.1:{listening.getsockname()[1]}/x.hdf5", d4rl_files.file_path(NAME))
        thread.join()


def test_a_published_checksum_is_compared(server: Server, tmp_path: Path) -> None:
    """The bytes are not D4RL's: once from a mirror, once copied manually."""
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        for key, array in make_log(rows=2000, observation=11, action=3).items():
            file[key] = array
    server.body = (tmp_path / "other.hdf5").read_bytes()
    path = d4rl_files.file_path(PINNED)
    with pytest.raises(AspcError, match=r"its SHA-256 is [0-9a-f]{16}…, not the published 5bdf1bc4a713c829…"):
        data.load(PINNED)
    assert list(path.parent.glob("hopper*[!k]")) == []  # neither it nor a part is kept
    path.write_bytes(server.body)
    with pytest.raises(AspcError, match=r"is not the published file .* load it by its path"):
        data.load(PINNED)
    assert len(data.load(tmp_path / "other.hdf5")) == 2000


def test_most_of_d4rls_files_have_a_published_checksum() -> None:
    pinned = {name for name, dataset in tasks.d4rl_datasets().items() if dataset.sha256 is not None}
    assert set(tasks.d4rl_datasets()) - pinned == {"maze2d-umaze-v1", "maze2d-medium-v1", "maze2d-large-v1"}
    assert len({tasks.d4rl_datasets()[name].sha256 for name in pinned}) == len(pinned) == 36
    for name in pinned:
        dataset = tasks.d4rl_datasets()[name]
        assert re.fullmatch("[0-9a-f]{64}", dataset.sha256)
        assert dataset.size > 2_000_000


def test_trust_on_first_use_is_reported(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    data.load(NAME)
    assert "no SHA-256 is published for this file, so it is trusted on first use" in capsys.readouterr().err
    record = json.loads((d4rl_files.file_path(NAME).parent / f"{FILE}.json").read_text())
    assert record["verified_against"].startswith("first use")
    data.load(NAME)
    assert capsys.readouterr().err == ""


DAMAGED_RECORDS = {
    "wrong types": json.dumps({"size": "many", "sha256": 7}),
    "a flag": json.dumps({"size": True, "sha256": "0" * 64}),
    "a list": json.dumps(["size", "sha256"]),
    "deep": "[" * 100_000,
    "half": '{"size": 12',
    "not text": "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGED_RECORDS)
def test_a_damaged_record_is_an_error(server: Server, damage: str) -> None:
    data.load(NAME)
    record = d4rl_files.file_path(NAME).parent / f"{FILE}.json"
    record.write_bytes(DAMAGED_RECORDS[damage].encode(errors="surrogateescape"))
    with pytest.raises(AspcError, match=r"download record .* is damaged; delete it"):
        data.load(NAME)
    d4rl_files.file_path(NAME).unlink()
    with pytest.raises(AspcError, match=r"download record .* is damaged; delete it"):
        data.load(NAME)
    record.unlink()
    assert len(data.load(NAME)) == 2000


@pytest.mark.parametrize("damage", DAMAGED_RECORDS)
def test_a_damaged_partial_record_restarts_the_download(server: Server, damage: str) -> None:
    cut_download(server)
    note = d4rl_files.file_path(NAME).parent / f"{FILE}.part.json"
    assert note.exists()
    note.write_bytes(DAMAGED_RECORDS[damage].encode(errors="surrogateescape"))
    data.load(NAME)
    assert server.requests[-1][1] is None
    assert cached() == [FILE, f"{FILE}.json"]


def test_an_oversized_part_restarts_the_download(server: Server) -> None:
    part = d4rl_files.file_path(NAME).with_name(f"{FILE}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(server.body + b"too much")
    data.load(NAME)
    assert d4rl_files.file_path(NAME).read_bytes() == server.body


def test_a_wrong_checksum_is_refused(server: Server) -> None:
    data.load(NAME)
    path = d4rl_files.file_path(NAME)
    path.write_bytes(server.body[:-1] + b"!")
    with pytest.raises(AspcError, match="has changed since its first download"):
        data.load(NAME)
    path.unlink()
    server.body = server.body[:-1] + b"!"  # the server has another file than the record says
    with pytest.raises(AspcError, match="checksum is not the one recorded"):
        data.load(NAME)
    assert cached() == [f"{FILE}.json"]


def test_a_page_instead_of_the_file_is_refused(server: Server) -> None:
    server.body = b"<html>Log in to this network</html>"
    with pytest.raises(AspcError, match=r"not a \.hdf5 file"):
        data.load(NAME)
    assert cached() == []


def test_http_404_is_reported(server: Server) -> None:
    server.status = 404
    with pytest.raises(AspcError, match="Not Found") as error:
        data.load(NAME)
    assert f"http://rail.eecs.berkeley.edu/datasets/{TAIL}" in str(error.value)
    assert f"copy it to {d4rl_files.file_path(NAME)}" in str(error.value)


def test_missing_network_is_reported_with_address_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import time

    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits {seconds} s"))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(
        AspcError, match=r"name resolution.*Download http://rail.* and copy it to .*maze2d-umaze-sparse-v1\.hdf5"
    ):
        data.load(NAME)
    with pytest.raises(AspcError, match=r"Download https://rail.*antmaze-large-navigate-v0-val\.npz"):
        data.load("antmaze-large-navigate-singletask-task1-v0", split="val")
    with pytest.raises(AspcError, match="no network; run `minari download"):
        data.load("D4RL/pen/human-v2")


def test_manually_copied_files_are_used(server: Server) -> None:
    d4rl_files.file_path(NAME).parent.mkdir(parents=True)
    d4rl_files.file_path(NAME).write_bytes(server.body)
    assert len(data.load(NAME)) == 2000
    assert server.requests == []
    assert f"{FILE}.json" in cached()  # verified from now on


def test_unwritable_cache_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPC_DATA", "/proc/nowhere")
    for name in (NAME, "maze2d-umaze?steps=100"):
        with pytest.raises(AspcError, match="Set ASPC_DATA to a writable folder"):
            data.load(name)
    from aspc.cli import data as data_command

    assert data_command.main(["list"]) == 0


def test_interrupted_server_leaves_a_part(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.cut_after = 1000
    with pytest.raises(AspcError, match="cut"):
        data.load(NAME)
    monkeypatch.setenv("ASPC_MIRRORS", "http://127.0.0.1:9")  # a port without a server
    with pytest.raises(AspcError, match="refused"):
        data.load(NAME)
    assert FILE not in cached()
    assert f"{FILE}.part" in cached()  # to resume from


def test_another_file_under_the_name_is_refused(server: Server, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "small.hdf5", "w") as file:
        for key, array in make_log(observation=4, action=3).items():
            file[key] = array
    server.body = (tmp_path / "small.hdf5").read_bytes()
    with pytest.raises(AspcError, match="but maze2d-umaze-v1 has 4 and 2"):
        data.load(NAME)


FETCH = """
import resource, sys
from pathlib import Path
from aspc.data import download
from aspc.errors import AspcError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    download.fetch(sys.argv[1], Path(sys.argv[2]))
except AspcError as error:
    print(error)
"""


def test_full_disk_is_reported(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "room" / FILE
    environment = {**os.environ, "ASPC_MIRRORS": ""}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, f"{server.base}/datasets/{TAIL}", str(path)],
        capture_output=True, text=True, env=environment, timeout=600, check=True,
    )  # fmt: skip
    assert "Not enough disk space" in done.stdout
    assert not path.exists()
    assert download.fetch(f"{server.base}/datasets/{TAIL}", path).read_bytes() == server.body  # and resumes


def test_mirrors_come_first_and_keep_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPC_MIRRORS", "http://a.example/x/, http://b.example")
    url = f"http://rail.eecs.berkeley.edu/datasets/{TAIL}"
    assert download.mirror_addresses(url) == [f"http://a.example/x/{TAIL}", f"http://b.example/{TAIL}", url]


class Noticed(io.StringIO):
    """A stderr that calls a function after a line."""

    def __init__(self, after_a_line: Callable[[], None]) -> None:
        super().__init__()
        self.after_a_line = after_a_line

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.endswith("\n"):
            self.after_a_line()
        return written


def test_waiting_for_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "maze.hdf5"
    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another process holds it
        let_go = partial(fcntl.flock, file, fcntl.LOCK_UN)
        monkeypatch.setattr(ui, "NOTICE_SECONDS", 0.01)
        monkeypatch.setattr(sys, "stderr", Noticed(let_go))
        rescue = threading.Timer(60, let_go)  # without the notice this test fails instead of hanging
        rescue.start()
        with cache.lock_file(path):
            rescue.cancel()
    assert sys.stderr.getvalue() == f"Waiting for another process that is generating or downloading {path} …\n"
    monkeypatch.setattr(ui, "NOTICE_SECONDS", 60)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with cache.lock_file(path):  # no wait, no notice
        assert sys.stderr.getvalue() == ""
