"""A lock on a run folder: only one process at a time may write to it.

It is a lock of the operating system on a file in the folder. It is released when its process ends in any way, including
`kill -9`, so a folder never stays locked. The file remains, and has no meaning by itself.
"""

from __future__ import annotations

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from offrank.core.errors import BusyError, OffrankError
from offrank.runs.folder import LOCK


def lock_folder(folder: Path) -> BaseFileLock:
    """Lock a run folder against other processes, until the lock is released or this process ends.

    The same process may lock a folder again, for example when a notebook's cell is run twice.

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
