"""Downloads: resumed where they were cut, verified, and in the cache under their final name only when whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aspc.data import cache
from aspc.data.readers.limits import read_json
from aspc.errors import AspcError
from aspc.io import replace_durably

CHUNK = 1 << 20
CONNECT_TIMEOUT = 15.0  # seconds without a byte
SIGNATURES = {".hdf5": b"\x89HDF\r\n\x1a\n", ".npz": b"PK\x03\x04"}
MAX_RECORD_BYTES = 1 << 16  # ours have a few hundred
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class Record(NamedTuple):
    """The size and checksum that a file has to have."""

    size: int
    sha256: str


def mirror_addresses(url: str) -> list[str]:
    """The addresses to try: mirrors from ASPC_MIRRORS (bases with commas between) first, then the published one.

    A mirror keeps the tree below `/datasets/`: `BASE/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5`.
    """
    tail = urlsplit(url).path.split("/datasets/", 1)[-1].lstrip("/")
    bases = [base.strip().rstrip("/") for base in os.environ.get("ASPC_MIRRORS", "").split(",")]
    return [*(f"{base}/{tail}" for base in bases if base), url]


def fetch(url: str, path: Path, published: Record | None = None) -> Path:
    """Return the file of an address at `path`: from the cache if it is there and as recorded, else downloaded.

    Args:
        url: The published address; mirrors are tried first.
        path: The final name in the cache.
        published: The file's size and checksum, if they are publicly known. Without them the first download is
            trusted and recorded.

    Raises:
        AspcError: If no address has the file, if there is no room for it, or if it is not the file that was expected.
    """
    with cache.lock(path):
        if path.exists():
            return _verified(path, published)
        problems, recorded = [], None if published else _read_record(path)
        for address in mirror_addresses(url):
            try:
                _download(address, path, published, recorded)
                return path
            # URLError and timeouts are OSErrors; an HTTPException is an answer that is cut or is not HTTP.
            except (OSError, ValueError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                    raise AspcError(
                        f"There is no room for {path}; make some, or set ASPC_DATA to a folder on a larger disk."
                    ) from error
                reason = getattr(error, "reason", None) or error
                problems.append(f"{address}: {reason}")
    raise AspcError(
        f"{path.name} could not be downloaded ({'; '.join(problems)}); "
        f"get {url} on a machine with a network and put it at {path}."
    )


# ── records: what a file was when it was first seen ─────────────────────────────────────────────────────────────────


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_json(path: Path) -> Any:
    """Return a small JSON file's content, or None if there is no such file. Raises ValueError if it is damaged."""
    try:
        return read_json(path, MAX_RECORD_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error)) from error


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_record(path: Path) -> Record | None:
    """Return the record of a file, or None if it has none."""
    try:
        content = _read_json(_record_path(path))
        if content is None:
            return None
        record = Record(content["size"], content["sha256"])
        if not _is_whole_number(record.size) or not re.fullmatch("[0-9a-f]{64}", record.sha256):
            raise ValueError("it has no size and SHA-256")
    except (ValueError, KeyError, TypeError) as error:
        raise AspcError(
            f"The download record {_record_path(path)} is damaged; delete it, then the file is recorded again as it is."
        ) from error
    return record


def _write_record(path: Path, source: str, found: Record, published: Record | None) -> None:
    verified = "published SHA-256" if published else "first use (no SHA-256 is published for this file)"
    content = {"url": source, **found._asdict(), "verified_against": verified}
    with cache.replacing(_record_path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=1), "utf-8")


def _measure(path: Path) -> Record:
    with open(path, "rb") as file:
        return Record(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _verified(path: Path, published: Record | None) -> Path:
    """Check a file in the cache against its published checksum, or else its record; one without a record gets one."""
    found = _measure(path)
    if published is not None:
        if found != published:
            raise AspcError(
                f"{path} is not the published file (it has {found.size:,} bytes and SHA-256 {found.sha256[:16]}…, not "
                f"{published.size:,} and {published.sha256[:16]}…); delete it to download it again, or move it "
                "elsewhere and load it by its path."
            )
        return path
    record = _read_record(path)
    if record is None:
        with contextlib.suppress(AspcError):  # a read-only cache stays without
            _write_record(path, "put there by hand", found, None)
    elif found != record:
        raise AspcError(
            f"{path} is not the file that was downloaded first ({found.size:,} bytes, recorded {record.size:,}); "
            f"delete it to download it again, or delete {_record_path(path).name} beside it to accept it."
        )
    return path


# ── one download ────────────────────────────────────────────────────────────────────────────────────────────────────


class Partial(NamedTuple):
    """The facts by which the rest of a cut download is known to be of the same file."""

    url: str
    validator: str
    """A strong ETag or a Last-Modified date."""
    total: int


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


def _read_partial(path: Path, address: str) -> Partial | None:
    """Return what is known of an earlier part of this address' file; None where it cannot be continued safely."""
    try:
        content = _read_json(_partial_path(path))
        partial = Partial(content["url"], content["validator"], content["total"])
    except (ValueError, KeyError, TypeError):
        return None
    is_whole = isinstance(partial.validator, str) and _is_whole_number(partial.total)
    return partial if is_whole and partial.url == address else None


def _validator(headers: Any) -> str | None:
    """Return what identifies the bytes that a server sends: a strong ETag, else the date of the last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _download(address: str, path: Path, published: Record | None, recorded: Record | None) -> None:
    """Download to a part file, continuing where an earlier try was cut; then verify and move."""
    part = path.with_name(f"{path.name}.part")
    partial, have = _read_partial(path, address), part.stat().st_size if part.exists() else 0
    response = None
    if partial is not None and 0 < have < partial.total:
        response = _request_rest(address, have, partial)
    resumed = response is not None
    if response is None:
        response = urllib.request.urlopen(_request(address), timeout=CONNECT_TIMEOUT)
    with response:
        done = have if resumed else 0
        total = _total_size(response, done, published)
        if not resumed:
            _note_partial(path, address, response.headers, total)
        with open(part, "ab" if resumed else "wb") as file, cache.progress(path.name, total, unit="bytes") as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(done)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done != total:
        again = "resumes there" if _partial_path(path).exists() else "starts again"
        raise OSError(f"the connection was cut at {done:,} of {total:,} bytes; the same command {again}")
    _accept(address, part, path, published, recorded)


def _request(address: str, **headers: str) -> urllib.request.Request:
    return urllib.request.Request(address, headers={"User-Agent": "aspc", **headers})


def _request_rest(address: str, have: int, partial: Partial) -> http.client.HTTPResponse | None:
    """Ask for the rest of a file; None unless the answer is exactly that, of a file that has not changed since."""
    request = _request(address, **{"Range": f"bytes={have}-", "If-Range": partial.validator})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        return None
    stated = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    is_rest = stated is not None and tuple(map(int, stated.groups())) == (have, partial.total - 1, partial.total)
    is_same_file = _validator(response.headers) in (None, partial.validator)
    if response.status == 206 and is_rest and is_same_file and response.length in (None, partial.total - have):
        return response
    response.close()
    return None


def _total_size(response: http.client.HTTPResponse, done: int, published: Record | None) -> int | None:
    """Return the size that the whole file will have; None if the server ends it with a mark instead of a length."""
    if response.status not in (200, 206) or (response.status == 206 and not done):
        raise ValueError(f"the server answered with status {response.status}")
    if response.length is not None:
        return done + response.length
    if published is None and not response.chunked:
        raise ValueError("the server does not state the file's length, so that a cut could not be noticed")
    return None


def _note_partial(path: Path, address: str, headers: Any, total: int | None) -> None:
    """Note what is needed to resume, or that the download cannot be."""
    _partial_path(path).unlink(missing_ok=True)  # first: an old note must not describe a new part
    validator = _validator(headers)
    if validator is not None and total is not None:
        _partial_path(path).write_text(json.dumps(Partial(address, validator, total)._asdict()), "utf-8")


def _accept(address: str, part: Path, path: Path, published: Record | None, recorded: Record | None) -> None:
    """Move a whole download to its final name, or throw it away and raise ValueError."""
    _partial_path(path).unlink(missing_ok=True)
    signature = SIGNATURES.get(path.suffix, b"")
    with open(part, "rb") as file:
        begins_right = file.read(len(signature)) == signature
    if not begins_right:
        part.unlink()
        raise ValueError(f"what came is not a {path.suffix} file")
    found = _measure(part)
    if published is not None and found != published:
        part.unlink()
        raise ValueError(f"its SHA-256 is {found.sha256[:16]}…, not the published {published.sha256[:16]}…")
    if recorded is not None and found != recorded:
        part.unlink()
        raise ValueError(f"its checksum is not the one recorded in {_record_path(path).name}; delete that to accept it")
    if published is None and recorded is None:
        print(
            f"{path.name}: no SHA-256 is published for this file, so it is trusted on first use and its checksum "
            f"recorded in {_record_path(path).name}.",
            file=sys.stderr,
        )
    _write_record(path, address, found, published)
    replace_durably(part, path)
