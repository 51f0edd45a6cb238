"""Find out what kind of file a log is, by its content.

It may be compressed by gzip, come through a pipe, or be no file at all.
"""

import atexit
import gzip
import json
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import pandas as pd

from paraguard_utils.errors import DataError

STDIN = "-"
SURROGATE = re.compile(r"[\ud800-\udfff]")  # what a byte that is not UTF-8 is read as
MAX_UNPACKED = 2 << 30  # bytes to which an archive may unpack

_HEAD_BYTES = 1 << 16  # by which the kind of a file is found out
_CHUNK_BYTES = 1 << 20
_EVENT = re.compile(r"(data|event): ?\S|: ")


class LogSource(NamedTuple):
    """A file, opened as often as needed.

    `kind`: table, parquet, lines, document, events or inspect. `name`: as the user
    wrote it. `skipped`: lines before a table's header.
    """

    path: Path
    kind: str
    encoding: str
    name: str
    skipped: int = 0

    @property
    def first(self) -> int:
        """The number by which the user knows the first row.

        A table's first line is row 1.
        """
        return 2 + self.skipped if self.kind == "table" else 1

    def place(self, row: int) -> str:
        """Return how the user finds a row, which is counted from 0."""
        unit = {"table": "row", "lines": "line"}.get(self.kind, "record")
        return f"{unit} {row + self.first}"

    def check(self, words: pd.Series, fine: pd.Series, problem: str) -> None:
        """Raise DataError about the first word that is not fine, by its row."""
        if fine.all():
            return
        row = fine.idxmin()
        word = words[row]
        word = word.iloc[0] if isinstance(word, pd.Series) else word
        word = str(word)[:80].encode("utf-8", "replace").decode()
        raise DataError(
            f"{self.name}, {self.place(int(row))}: {words.name} {word!r} {problem}; fix"
            f" it, leave the row out, or pass --{words.name} none"
        )

    def error(self, error: Exception) -> DataError:
        """Return what to raise about a file that cannot be read."""
        said = str(error).strip() or type(error).__name__
        # pandas counts rows without the header
        if opened := re.search(r"EOF inside string starting at row (\d+)", said):
            row = int(opened[1]) + 1 + self.skipped
            said = f"a quotation mark that opens in row {row} is never closed"
        said = said.removeprefix("Error tokenizing data. C error: ").splitlines()[0]
        what = "text in UTF-8" if self.kind in ("table", "lines") else self.kind
        return DataError(
            f"{self.name}: this cannot be read as {what} ({said[:200]}); fix the file,"
            " or copy it again"
        )

    def open_text(self) -> IO[str]:
        """Open the file as text; only a line feed ends a line."""
        return self.path.open(encoding=self.encoding, errors="replace", newline="\n")


def find_log_source(file: str | Path) -> LogSource:
    """Find out what kind of file this is; "-" is standard input.

    Raises DataError if there is none, if it is empty, and if its kind cannot be read.
    """
    name = SURROGATE.sub("\ufffd", str(file))
    path = _find_path(file, name)
    if _read_head(path).startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as opened:
                path = _keep(opened, name)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{name}: the compressed file is damaged ({error}); copy it again"
            ) from None
    head = _read_head(path)
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = head.decode(encoding, "replace").lstrip()
    if not text:
        raise DataError(
            f"{name}: the file is empty; it needs a header and rows, or a JSON object a"
            " line"
        )
    if head.startswith(b"PAR1"):
        return LogSource(path, "parquet", encoding, name)
    if head.startswith(b"PK\x03\x04") and b"xl/" not in head:
        _check_archive(path, name)
        return LogSource(path, "inspect", encoding, name)
    if "\0" in text:
        raise DataError(
            f"{name}: this is no text, an Excel workbook perhaps; pass CSV, JSON lines,"
            " Parquet or an Inspect log"
        )
    if encoding != "utf-16":
        _check_no_nul(path, name)
    if text[0] in "{[":
        first = text.split("\n", 1)[0]
        is_whole = isinstance(decode(first), dict) or len(first) >= _HEAD_BYTES // 2
        kind = "lines" if text[0] == "{" and is_whole else "document"
        return LogSource(path, kind, encoding, name)
    if _EVENT.match(text):
        return LogSource(path, "events", encoding, name)
    lines = head.decode(encoding, "replace").split("\n")
    skipped = count_lines_before_header(lines)
    if "\ufffd" in lines[skipped]:
        raise DataError(f"{name}: its header is not UTF-8; save it as UTF-8")
    return LogSource(path, "table", encoding, name, skipped)


def _find_path(file: str | Path, name: str) -> Path:
    """Return a path that can be read twice."""
    if str(file) == STDIN:
        if sys.stdin is None:
            raise DataError("-: standard input is closed; pipe a log into it")
        return _keep(sys.stdin.buffer, name)
    path = Path(file)
    if path.is_dir():
        raise DataError(f"{name}: this is a folder; name a file in it")
    if not path.exists():
        raise DataError(f"{name}: there is no such file")
    if path.is_file():
        return path
    with path.open("rb") as opened:  # a pipe of the shell's <(...)
        return _keep(opened, name)


def _read_head(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def _keep(content: Any, name: str) -> Path:
    """Copy a stream to a file of this process, whose beginning is read twice."""
    with tempfile.NamedTemporaryFile(delete=False, prefix="paraguard-") as kept:
        atexit.register(Path(kept.name).unlink, missing_ok=True)
        if not isinstance(content, gzip.GzipFile):
            shutil.copyfileobj(content, kept)
            return Path(kept.name)
        for chunk in iter(lambda: content.read(_CHUNK_BYTES), b""):
            kept.write(chunk)
            if kept.tell() > MAX_UNPACKED:
                raise _too_large(name)
    return Path(kept.name)


def _check_archive(path: Path, name: str) -> None:
    """Raise DataError if an archive says that it unpacks to more than the limit."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # its own reader says what is wrong
    if size > MAX_UNPACKED:
        raise _too_large(name)


def _too_large(name: str) -> DataError:
    return DataError(
        f"{name}: this unpacks to more than {MAX_UNPACKED / 2**30:.0f} GB; unpack it"
        " yourself, and pass a part of it"
    )


def _check_no_nul(path: Path, name: str) -> None:
    """Raise DataError about the first NUL byte of a text, by its line."""
    lines = 1
    with path.open("rb") as opened:
        for chunk in iter(lambda: opened.read(_CHUNK_BYTES), b""):
            place = chunk.find(b"\0")
            if place >= 0:
                lines += chunk.count(b"\n", 0, place)
                raise DataError(
                    f"{name}, line {lines}: there is a NUL byte, so the file is damaged"
                    " or no text; copy it again"
                )
            lines += chunk.count(b"\n")


def count_fields(line: str) -> int:
    """Return how many fields a line of a table has by its commonest separator."""
    return 1 + max(map(re.sub('"[^"]*"', "", line).count, ",\t;|"))


def count_lines_before_header(lines: list[str]) -> int:
    """Return how many blank lines and comments a table has before its header.

    A comment begins with # and has another number of fields than the first other line.

    Examples
    --------
    >>> count_lines_before_header(["# version=1", "text,decision", "a,refused"])
    1
    """
    others = [line for line in lines if line.strip() and not line.startswith("#")]
    others = [line for line in others if not re.fullmatch(r"sep=.\r?", line)]
    fields = count_fields(others[0]) if others else 0
    for number, line in enumerate(lines):
        if not line.strip() or re.fullmatch(r"sep=.\r?", line):
            continue
        if line.startswith("#") and count_fields(line) != fields:
            continue
        return number
    return 0


def map_text(values: pd.Series, function: Callable[[Any], Any] = str) -> pd.Series:
    """Return what a function makes of each value, as objects.

    `Series.map` would hand texts to Arrow, which takes no halves of pairs.
    """
    found = [function(value) for value in values.tolist()]
    return pd.Series(found, values.index, dtype=object, name=values.name)


def decode(text: str) -> Any:
    """Decode JSON; return None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
