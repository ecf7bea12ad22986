"""Downloads: resumed where they were cut, verified, and in the cache under their final name only when whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aspc.data import cache
from aspc.errors import AspcError

CHUNK = 1 << 20
CONNECT_TIMEOUT = 15.0  # seconds without a byte
SIGNATURES = {".hdf5": b"\x89HDF\r\n\x1a\n", ".npz": b"PK\x03\x04"}


def mirror_addresses(url: str) -> list[str]:
    """The addresses to try: mirrors from ASPC_MIRRORS (bases with commas between) first, then the published one.

    A mirror keeps the tree below `/datasets/`: `BASE/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5`.
    """
    tail = urlsplit(url).path.split("/datasets/", 1)[-1].lstrip("/")
    bases = [base.strip().rstrip("/") for base in os.environ.get("ASPC_MIRRORS", "").split(",")]
    return [*(f"{base}/{tail}" for base in bases if base), url]


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(_record_path(path).read_text("utf-8"))
        return record if isinstance(record, dict) and {"size", "sha256"} <= set(record) else None
    except (OSError, ValueError):
        return None


def _write_record(path: Path, record: dict[str, Any]) -> None:
    with cache.replacing(_record_path(path)) as temporary:
        temporary.write_text(json.dumps(record, indent=1), "utf-8")


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(url: str, path: Path) -> Path:
    """The file of an address at `path`: from the cache if it is there and as recorded, else downloaded."""
    with cache.lock(path):
        if path.exists():
            return _verified(path)
        problems = []
        for address in mirror_addresses(url):
            try:
                _download(address, path)
                return path
            except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
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


def _verified(path: Path) -> Path:
    """A file in the cache, checked against its record; a file put there by hand gets its record now."""
    record = _read_record(path)
    size = path.stat().st_size
    if record is None:
        with contextlib.suppress(AspcError):  # a read-only cache stays without
            _write_record(path, {"url": "put there by hand", "size": size, "sha256": _checksum(path)})
    elif size != record["size"] or _checksum(path) != record["sha256"]:
        raise AspcError(
            f"{path} is not the file that was downloaded first ({size:,} bytes, recorded {record['size']:,}); "
            f"delete it to download it again, or delete {_record_path(path).name} beside it to accept it."
        )
    return path


def _download(address: str, path: Path) -> None:
    """Download to a part file, going on where an earlier try was cut; then verify and move."""
    part, tag_path = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.tag")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "aspc"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        tag = _read_text(tag_path)
        if tag:
            request.add_header("If-Range", tag)  # another file by now: the server sends it whole
    try:
        response = urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is as long as the file or longer: begin again
            error.close()
            part.unlink()
            return _download(address, path)
        raise
    with response:
        resumed = have > 0 and getattr(response, "status", 200) == 206
        done = have if resumed else 0
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if tag and not tag.startswith("W/"):
            tag_path.write_text(tag, "utf-8")
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with open(part, "ab" if resumed else "wb") as file, cache.progress(path.name, total, unit="bytes") as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(done)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done != total:
        raise OSError(f"the connection was cut at {done:,} of {total:,} bytes; the same command resumes there")
    tag_path.unlink(missing_ok=True)
    _accept(address, part, path)
    return None


def _read_text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    return None


def _accept(address: str, part: Path, path: Path) -> None:
    """Move a whole download to its final name, or throw it away and say why."""
    signature = SIGNATURES.get(path.suffix, b"")
    with open(part, "rb") as file:
        begins_right = file.read(len(signature)) == signature
    record, size, checksum = _read_record(path), part.stat().st_size, _checksum(part)
    if not begins_right:
        part.unlink()
        raise ValueError(f"what came is not a {path.suffix} file")
    if record is not None and (size, checksum) != (record["size"], record["sha256"]):
        part.unlink()
        raise ValueError(f"its checksum is not the one recorded in {_record_path(path).name}; delete that to accept it")
    _write_record(path, {"url": address, "size": size, "sha256": checksum})
    os.replace(part, path)
