"""Folders and files that are whole or not there: written beside, and renamed into place.

`manifest.json` lists every file with its sha256. It is written last, so a folder that has one is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

FORMAT = 1

# Writes one or more files into the folder that it is given.
Part = Callable[[Path], None]


def write(folder: Path, parts: Iterable[Part]) -> None:
    """A folder of these parts: beside it first, then in its place, so that none is ever half-written."""
    _check_place(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for part in parts:
            part(beside)
        written = sorted(path for path in beside.iterdir())
        listed = {"format": FORMAT, "files": {path.name: sha256(path) for path in written}}
        # No line's end after it: whatever is cut off is missed.
        (beside / "manifest.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")
        for path in beside.iterdir():
            path.chmod(0o644)
            fsync(path)
        beside.chmod(0o755)
        fsync(beside)
        _put_in_place(beside, folder)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, SafetensorError):
            # Weights are written by another library, which has its own word for a full disk.
            raise OSError(f"{folder} cannot be written: {error}") from None
        raise


def put(path: Path, content: str) -> None:
    """A file of this text, in place of what stood there."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(content, encoding="utf-8")
        fsync(beside)
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None


def text(name: str, content: str) -> Part:
    """A part that is one text file."""

    def part(folder: Path) -> None:
        (folder / name).write_text(content, encoding="utf-8")

    return part


def _check_place(folder: Path) -> None:
    """Only a folder that `write` wrote, and nobody else added to, is overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    listed = manifest(folder) if folder.is_dir() else {}
    if not listed:
        raise ValueError(f"{folder} exists and is not a model's folder: choose another, or remove it")
    others = sorted(path.name for path in folder.iterdir() if path.name not in {"manifest.json", *listed})
    if others:
        raise ValueError(
            f"{folder} holds what is not the model's ({', '.join(others[:5])}): choose another folder, or move it away"
        )


def _put_in_place(beside: Path, folder: Path) -> None:
    old = None
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
        try:
            os.replace(folder, old)
        except BaseException:
            old.rmdir()
            raise
    try:
        os.replace(beside, folder)
    except BaseException:
        if old is not None:
            os.replace(old, folder)
        raise
    fsync(folder.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def manifest(folder: Path) -> dict[str, str]:
    """What heedful's own manifest lists, name -> sha256; nothing where there is none, or another program's."""
    path = folder / "manifest.json"
    try:
        found = json_object(path) if path.exists() else {}
    except ValueError:
        return {}
    files = found.get("files")
    known = set(found) == {"format", "files"} and found["format"] == FORMAT
    ours = known and isinstance(files, dict) and "config.json" in files
    return files if ours and isinstance(files, dict) else {}


def check(folder: Path, listed: Mapping[str, str]) -> None:
    for name, digest in listed.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ValueError(
                f"{folder}: its manifest names {name!r}, which is not a file in it: the folder is incomplete"
            )
        if sha256(path) != digest:
            raise ValueError(f"{path} is damaged: its content is not what the manifest says. Load another copy")


def json_object(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if missing_ok:
            return {}
        raise ValueError(f"{path.parent} has no {path.name}: it is not a model's folder, or incomplete")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
