"""Writing without half-written files: everything appears under its name at once, or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 1 << 20


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well. A folder with content is refused."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=path.parent, prefix=".writing-"))
    try:
        work.chmod(0o755)  # mkdtemp makes it private
        yield work
        for file in work.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        if path.exists():
            path.rmdir()
        work.rename(path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def refuse_existing(path: Path) -> None:
    """Unless `path` can become a new folder, or is an empty one."""
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise NotADirectoryError(f"{path} cannot be made: {above} is not a folder")
    empty = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    if os.path.lexists(path) and not empty:
        raise FileExistsError(
            f"{path} exists already and nothing is overwritten: remove it, or choose another"
        )


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write, which replaces `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=path.suffix)
    os.close(handle)
    work = Path(name)
    try:
        work.chmod(0o644)  # mkstemp makes it private
        yield work
        with work.open("rb") as file:
            os.fsync(file.fileno())
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
