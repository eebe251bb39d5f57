"""One process at a time writes a run folder.

The lock is the operating system's, on a file in the folder: it dies with its process, however that ends, so nothing is
ever left locked, and a folder may be taken over at once after `kill -9`. The file itself stays and means nothing.
"""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from offrank.core.errors import BusyError, OffrankError
from offrank.runs.folder import LOCK


def lock_folder(folder: Path) -> BaseFileLock:
    """Keep other processes from writing to a run folder, until the lock is released or this process ends.

    Within one process a folder may be locked again: a notebook's cell that is run twice is no conflict.

    Raises:
        BusyError: another process holds it.
    """
    path = folder.absolute() / LOCK
    lock = FileLock(path, is_singleton=True, thread_local=False)
    if lock.is_locked:
        return lock
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise BusyError(
            f"{folder} is being written by another offrank process: wait for it to end, or choose another --out"
        ) from error
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OffrankError(f"cannot write {path}: {reason}") from error
    return lock
