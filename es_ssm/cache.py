"""A disk cache for arrays that are costly to make: atomic, verified, safe between processes.

An entry is one safetensors file. Its name is a digest of the key; its header repeats the key and
carries a checksum of the data, so an entry that is damaged, or was written for something else, is
never believed: it is made again, with a warning.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .files import new_file

FORMAT_VERSION = 1
Arrays = dict[str, np.ndarray]


def cache_folder() -> Path:
    """`ES_SSM_CACHE`, or `es-ssm` in the XDG cache folder."""
    own = os.environ.get("ES_SSM_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "es-ssm"


def cached_arrays(key: Mapping[str, str | int], make: Callable[[], Arrays]) -> Arrays:
    """The arrays of `make()`, from the cache if a sound entry for `key` is there.

    `key` must hold every argument that the arrays depend on. A cache that cannot be written (a full
    disk, a folder without permission) costs time, never the result.
    """
    wanted = json.dumps({"format": FORMAT_VERSION, "key": dict(key)}, sort_keys=True)
    path = cache_folder() / f"{hashlib.sha256(wanted.encode()).hexdigest()[:32]}.safetensors"
    try:
        return _read(path, wanted)
    except FileNotFoundError:  # also where the path cannot be one: a name too long, a file as folder
        pass
    except (ValueError, OSError, SafetensorError) as problem:
        warnings.warn(f"cache file {path} is damaged ({problem}); it is made again", stacklevel=3)
    arrays = make()
    try:
        _write(path, wanted, arrays)
    except OSError as problem:
        warnings.warn(f"cache file {path} could not be written ({problem})", stacklevel=3)
    return arrays


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _read(path: Path, wanted: str) -> Arrays:
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header.get("key") != wanted:
        raise ValueError("its key is another one")
    if header.get("sha256") != _checksum(arrays):
        raise ValueError("its checksum is wrong")
    return arrays


def _write(path: Path, key: str, arrays: Arrays) -> None:
    data = save(arrays, metadata={"key": key, "sha256": _checksum(arrays)})
    with new_file(path) as work:
        work.write_bytes(data)
