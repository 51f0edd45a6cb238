"""Files that grow part by part, so that a killed run loses little."""

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeAlias

import pandas as pd
from filelock import FileLock, Timeout

from paraguard_utils import paths
from paraguard_utils.errors import Changed, DataError
from paraguard_utils.stores import read_file, read_meta, write_atomically

Shard: TypeAlias = tuple[int, int]
"""(i, n): the i-th of n parts of a work, counted from 1."""

WHOLE: Shard = (1, 1)

_NUMBERED = re.compile(r"part-([0-9]+)\.")  # begins the name of every part


class Parts:
    """What a run that may be killed has of a file so far.

    It is a folder of parts, each written in one step, under one lock. The parts of
    `x.csv` are `x.parts/part-000000.parquet` and so on. They are checked if their
    `kind` has a schema.

    The lock, `x.csv.lock`, is held inside a `with` block, which begins by removing what
    a killed run had half written. If another process holds the lock, or no file can be
    locked there, or a part has a name that no run gives, that raises `DataError`.

    Attributes
    ----------
    file : Path
        The file that the parts are to become.
    kind : str
    apart : str
        Parts made in another way lie apart, in `x.APART.parts`.
    shard : Shard
        One of n processes that work on the file side by side has a folder and a lock of
        its own; `WHOLE` is alone, and has the parts of all shards.
    folder : Path
        Where this process adds parts.
    """

    def __init__(
        self, file: Path, kind: str, apart: str = "", shard: Shard = WHOLE
    ) -> None:
        self.file = file
        self.kind = kind
        self.is_whole = shard == WHOLE
        self._stem = file.stem + (f".{apart}" if apart else "")
        suffix = "" if self.is_whole else f".shard-{shard[0]}-of-{shard[1]}"
        self.folder = file.parent / f"{self._stem}{suffix}.parts"
        self._locks = ExitStack()

    def __enter__(self) -> Self:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            own = self.file if self.is_whole else self.folder
            for path in [own, *self._shard_folders()]:
                lock = FileLock(f"{path}.lock", timeout=0)
                try:
                    locks.enter_context(lock)
                except Timeout:
                    raise DataError(
                        f"{paths.display_path(self.file)} is being written by another"
                        " process; wait for it or use another store"
                    ) from None
                except OSError as error:
                    where = paths.display_path(f"{path}.lock")
                    raise DataError(
                        f"{where} cannot be locked ({error.strerror or error}); remove"
                        " it, or make its folder writable, and run again"
                    ) from error
            self._check_names()
            self._locks = locks.pop_all()
        leftovers = list(self.folder.glob(".part-*.tmp"))
        if self.is_whole:
            leftovers += self.file.parent.glob(f".{self.file.name}.*.tmp")
        else:
            # By its folder, a run that puts all together knows of this shard.
            self.folder.mkdir(exist_ok=True)
        for leftover in leftovers:
            leftover.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def _check_names(self) -> None:
        """Raise a DataError about a part that no run wrote."""
        for file in self.files():
            if not file.is_file() or not _NUMBERED.match(file.name):
                raise DataError(
                    f"{paths.display_path(file)} is no part that a run wrote; move it"
                    " out of that folder"
                )

    def _shard_folders(self) -> list[Path]:
        """Return the folders of the shards whose parts are this run's too."""
        if not self.is_whole:
            return []
        return sorted(self.file.parent.glob(f"{self._stem}.shard-*.parts"))

    def files(self) -> list[Path]:
        """Return the parts in the order in which they were added."""
        files = []
        for folder in [self.folder, *self._shard_folders()]:
            files += sorted(folder.glob("part-*.parquet"))
        return files

    def read(self, *before: Path) -> list[pd.DataFrame]:
        """Read files that may be there, then the parts."""
        frames = []
        for file in [*before, *self.files()]:
            frames += self.read_if_sound(file, self.kind)
        return frames

    def read_if_sound(self, file: Path, kind: str) -> list[pd.DataFrame]:
        """Read one file, if there; set it aside as `*.corrupt` if it cannot be read.

        One that can be read but was changed is a DataError, and so is a damaged meta
        file: making anew what the file holds may take hours, so the user decides.
        """
        if not file.is_file():
            return []
        read_meta(file)
        try:
            return [read_file(file, kind)]
        except Changed:
            raise
        except DataError as error:
            os.replace(file, file.with_name(f"{file.name}.corrupt"))
            print(
                f"{error}; it was set aside, and what it held is made again",
                file=sys.stderr,
            )
            return []

    def add(self, rows: pd.DataFrame) -> None:
        """Write one more part; a number that was set aside is not given again."""
        names = [_NUMBERED.match(file.name) for file in self.folder.glob("part-*")]
        numbers = [int(name[1]) for name in names if name]
        part = self.folder / f"part-{max(numbers, default=-1) + 1:06d}.parquet"
        write_atomically(
            part, lambda file: rows.to_parquet(file, index=False, compression="zstd")
        )

    def clear(self) -> None:
        """Remove the parts, and their folders unless something was set aside there."""
        for part in self.files():
            part.unlink()
        for folder in [self.folder, *self._shard_folders()]:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
