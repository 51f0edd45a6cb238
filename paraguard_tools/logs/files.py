"""Write what an audit found, whole or not at all."""

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.paths import display_path


def write_whole(path: Path, produce: Callable[[Path], object]) -> None:
    """Let `produce` write a file beside `path`, then move it there at once.

    A link at `path` is replaced, not followed; a device or a pipe is written to. Raise
    DataError if it cannot be written: then nothing is changed.
    """
    part = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        if path.exists() and not path.is_file():
            produce(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            produce(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{display_path(path)} cannot be written ({error.strerror or error}); mend"
            " that and run again"
        ) from error


def write_whole_text(path: Path, text: str) -> None:
    """Write a text as `write_whole` does, in UTF-8, line ends as they are."""

    def produce(part: Path) -> None:
        part.write_text(text, encoding="utf-8", errors="replace", newline="\n")

    write_whole(path, produce)


def remove_file(path: Path) -> None:
    """Remove a file, or a link itself, of an earlier run; leave anything else."""
    if path.is_symlink() or path.is_file():
        try:
            path.unlink()
        except OSError as error:
            raise DataError(
                f"{display_path(path)} is of an earlier run and cannot be removed"
                f" ({error.strerror or error}); remove it, and run again"
            ) from error


def check_outputs(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Raise SettingsError if a file that is to be written is one that is read."""
    read = [Path(file) for file in inputs if Path(file).exists()]
    for path in outputs:
        for file in read:
            if path.exists() and path.samefile(file):
                raise SettingsError(
                    f"{display_path(path)} is read, so it cannot be written; name"
                    " another file or folder"
                )
