"""Download files: resume after an interruption, verify, and move each file to its final name when complete."""

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
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aspc.data import cache
from aspc.errors import AspcError
from aspc.io import atomic_output, read_bounded_json, replace_durably
from aspc.ui import progress_bar

CHUNK = 1 << 20
CONNECT_TIMEOUT = 15.0  # seconds without receiving data
SIGNATURES = {".hdf5": b"\x89HDF\r\n\x1a\n", ".npz": b"PK\x03\x04"}
MAX_RECORD_BYTES = 1 << 16  # actual records have a few hundred bytes
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class Record(NamedTuple):
    """The expected size and checksum of a file."""

    size: int
    sha256: str


def mirror_addresses(url: str) -> list[str]:
    """Return the addresses to try: mirrors from ASPC_MIRRORS (separated by commas), then the published one.

    A mirror reproduces the folder tree below `/datasets/`: `BASE/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5`.
    """
    tail = urlsplit(url).path.split("/datasets/", 1)[-1].lstrip("/")
    bases = [base.strip().rstrip("/") for base in os.environ.get("ASPC_MIRRORS", "").split(",")]
    return [*(f"{base}/{tail}" for base in bases if base), url]


def fetch(url: str, path: Path, published: Record | None = None) -> Path:
    """Download a file unless it is in the cache, verify it and return its path.

    Args:
        url: The published address; mirrors are tried first.
        path: The final name in the cache.
        published: The published size and checksum, if any. Without them, the first download is trusted and its
            checksum recorded.

    Raises:
        AspcError: All addresses fail, the disk is full, or the cached file does not match its checksum.
    """
    with cache.lock_file(path):
        if path.exists():
            return _verified(path, published)
        problems, recorded = [], None if published else _read_record(path)
        for address in mirror_addresses(url):
            try:
                _download(address, path, published, recorded)
                return path
            # URLError and timeouts are OSErrors; HTTPException means a truncated or invalid response.
            except (OSError, ValueError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                    raise AspcError(
                        f"Not enough disk space for {path}. Free some, or set ASPC_DATA to a folder on another disk."
                    ) from error
                reason = getattr(error, "reason", None) or error
                problems.append(f"{address}: {reason}")
    raise AspcError(
        f"{path.name} could not be downloaded ({'; '.join(problems)}). "
        f"Download {url} on a machine with network access and copy it to {path}."
    )


# ── records of verified files ───────────────────────────────────────────────────────────────────────────────────────


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_json(path: Path) -> Any:
    """Return the content of a small JSON file, or None if the file is missing. Raises ValueError if it is damaged."""
    try:
        return read_bounded_json(path, MAX_RECORD_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error)) from error


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_record(path: Path) -> Record | None:
    """Return the record of a file, or None if it has none."""
    try:
        content = _read_json(_record_path(path))
        if content is None:
            return None
        record = Record(content["size"], content["sha256"])
        if not _is_size(record.size) or not re.fullmatch("[0-9a-f]{64}", record.sha256):
            raise ValueError("no size or SHA-256")
    except (ValueError, KeyError, TypeError) as error:
        raise AspcError(
            f"The download record {_record_path(path)} is damaged; delete it to record the file again."
        ) from error
    return record


def _write_record(path: Path, source: str, found: Record, published: Record | None) -> None:
    verified = "published SHA-256" if published else "first use (no SHA-256 is published for this file)"
    content = {"url": source, **found._asdict(), "verified_against": verified}
    with atomic_output(_record_path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=1), "utf-8")


def _measure(path: Path) -> Record:
    with open(path, "rb") as file:
        return Record(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _verified(path: Path, published: Record | None) -> Path:
    """Check a cached file against its published checksum or, if there is none, its record (created if missing)."""
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
        with contextlib.suppress(AspcError):  # a read-only cache cannot hold a record
            _write_record(path, "copied manually", found, None)
    elif found != record:
        raise AspcError(
            f"{path} has changed since its first download ({found.size:,} bytes now, {record.size:,} bytes then); "
            f"delete it to download it again, or delete {_record_path(path).name} to accept it."
        )
    return path


# ── one download ────────────────────────────────────────────────────────────────────────────────────────────────────


class Partial(NamedTuple):
    """The source and version of a partly downloaded file."""

    url: str
    validator: str
    """A strong ETag or a Last-Modified date."""
    total: int


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


def _read_partial(path: Path, address: str) -> Partial | None:
    """Return the record of an interrupted download from this address, or None if it cannot be resumed safely."""
    try:
        content = _read_json(_partial_path(path))
        partial = Partial(content["url"], content["validator"], content["total"])
    except (ValueError, KeyError, TypeError):
        return None
    is_valid = isinstance(partial.validator, str) and _is_size(partial.total)
    return partial if is_valid and partial.url == address else None


def _validator(headers: Message) -> str | None:
    """Return the header that identifies the file's version: a strong ETag, or else the Last-Modified date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _download(address: str, path: Path, published: Record | None, recorded: Record | None) -> None:
    """Download to a part file, resuming if possible, then verify it and move it to its final name."""
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
            _record_partial(path, address, response.headers, total)
        with open(part, "ab" if resumed else "wb") as file, progress_bar(path.name, total, unit="bytes") as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(done)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done != total:
        again = "resume" if _partial_path(path).exists() else "start over"
        raise OSError(f"the connection was cut at {done:,} of {total:,} bytes; run the same command again to {again}")
    _accept(address, part, path, published, recorded)


def _request(address: str, **headers: str) -> urllib.request.Request:
    return urllib.request.Request(address, headers={"User-Agent": "aspc", **headers})


def _request_rest(address: str, have: int, partial: Partial) -> http.client.HTTPResponse | None:
    """Request the rest of a file; return None unless the response is exactly the rest of the unchanged file."""
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
    """Return the size of the complete file, or None if the response does not state it."""
    if response.status not in (200, 206) or (response.status == 206 and not done):
        raise ValueError(f"the server answered with status {response.status}")
    if response.length is not None:
        return done + response.length
    if published is None and not response.chunked:
        raise ValueError("the server did not report the file size, so an incomplete download would go unnoticed")
    return None


def _record_partial(path: Path, address: str, headers: Message, total: int | None) -> None:
    """Record the information needed to resume the download, if the response allows resuming."""
    _partial_path(path).unlink(missing_ok=True)  # deleted first, so that an old record never describes a new part file
    validator = _validator(headers)
    if validator is not None and total is not None:
        _partial_path(path).write_text(json.dumps(Partial(address, validator, total)._asdict()), "utf-8")


def _accept(address: str, part: Path, path: Path, published: Record | None, recorded: Record | None) -> None:
    """Move a valid download to its final name; delete an invalid one and raise ValueError."""
    _partial_path(path).unlink(missing_ok=True)
    signature = SIGNATURES.get(path.suffix, b"")
    with open(part, "rb") as file:
        has_signature = file.read(len(signature)) == signature
    if not has_signature:
        part.unlink()
        raise ValueError(f"the response is not a {path.suffix} file")
    found = _measure(part)
    if published is not None and found != published:
        part.unlink()
        raise ValueError(f"its SHA-256 is {found.sha256[:16]}…, not the published {published.sha256[:16]}…")
    if recorded is not None and found != recorded:
        part.unlink()
        raise ValueError(
            f"its checksum is not the one recorded in {_record_path(path).name}; delete that record to accept the file"
        )
    if published is None and recorded is None:
        print(
            f"{path.name}: no SHA-256 is published for this file, so it is trusted on first use and its checksum "
            f"recorded in {_record_path(path).name}.",
            file=sys.stderr,
        )
    _write_record(path, address, found, published)
    replace_durably(part, path)
