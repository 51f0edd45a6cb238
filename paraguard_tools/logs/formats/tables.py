"""Read tables: CSV with any usual separator, and Parquet; each cell is text."""

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from paraguard_tools.logs.formats.sources import SURROGATE, LogSource
from paraguard_utils.errors import DataError

_EXTRA = "\0more"  # the column of what a row has beyond the header


def read_table(source: LogSource, errors: str = "strict") -> pd.DataFrame:
    """Read a table, each field as text; `errors` is that of `open`.

    Empty columns behind the last one are left out, however many rows have one. Raises
    DataError about a row that has more fields than the header, since its values would
    be taken for those of other columns.
    """
    with source.open_text() as opened:
        for _ in range(source.skipped):
            opened.readline()
        header = opened.readline()
    bare = re.sub('"[^"]*"', "", header)
    separator = max(",\t;|", key=bare.count)
    try:
        names = _read_header(source, separator)
        frame = pd.read_csv(
            source.path,
            sep=separator,
            dtype=object,
            keep_default_na=False,
            index_col=False,
            header=None,
            names=[*range(len(names)), _EXTRA],
            skiprows=source.skipped + 1 + sum(name.count("\n") for name in names),
            encoding=source.encoding,
            encoding_errors=errors,
        )
    except pd.errors.EmptyDataError:
        return pd.DataFrame(columns=names, dtype=object)
    except UnicodeError:
        raise DataError(
            f"{source.name}: it is not UTF-8; save it as UTF-8, for example by iconv"
            " -f WINDOWS-1252 -t UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        raise _correct_count(source, error, len(names)) from None
    more = frame.pop(_EXTRA)
    is_more = more.notna() & (more != "")
    if is_more.any():
        row = int(is_more.idxmax())
        raise DataError(
            f"{source.name}, {source.place(row)}: it has more than the"
            f" {len(names)} fields of the header; put texts with {separator!r} in"
            " quotation marks"
        )
    frame.columns = pd.Index(names)
    empty = [number for number, name in enumerate(names) if not name.strip()]
    filled = [number for number in empty if (frame.iloc[:, number] != "").any()]
    kept = [number for number in range(len(names)) if number not in empty]
    return frame.iloc[:, sorted(kept + filled)]


def _read_header(source: LogSource, separator: str) -> list[str]:
    """Return the names of a table's columns, as they are in the file."""
    path, encoding = source.path, source.encoding
    with path.open(encoding=encoding, errors="replace", newline="") as opened:
        for _ in range(source.skipped):
            opened.readline()
        names = next(csv.reader(opened, delimiter=separator), [])
    if names and names[0].startswith("#"):
        names[0] = names[0].lstrip("# ") or names[0]
    return names


def _correct_count(source: LogSource, error: Exception, n: int) -> DataError:
    """Return an error whose numbers count the header's fields as a reader would."""
    said = str(error)
    if match := re.search(r"Expected \d+ fields in line (\d+), saw (\d+)", said):
        said = f"Expected {n} fields in line {match[1]}, saw {match[2]}"
    return source.error(ValueError(said))


def read_parquet(source: LogSource) -> pd.DataFrame:
    """Read a Parquet file; names of an index are columns too."""
    try:
        frame = pd.read_parquet(source.path)
    except ImportError:
        raise DataError(
            f"{source.name}: Parquet needs a package that is not there: pip install"
            " pyarrow"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        twice = re.search(
            r"Multiple matches for FieldRef\.Name\((.*?)\) in", str(error)
        )
        if twice:
            raise DataError(
                f"{source.name}: two columns are named {twice[1]!r}; rename one of them"
            ) from None
        raise source.error(error) from None
    named = [name for name in frame.index.names if name is not None]
    if named:
        inside = [name for name in named if name in frame]
        for name in inside:
            if not frame.index.get_level_values(name).equals(pd.Index(frame[name])):
                raise DataError(
                    f"{source.name}: {name!r} is both a column and the index; rename"
                    " one of them"
                )
        frame = frame.drop(columns=inside).reset_index()
    return frame.reset_index(drop=True).rename(columns=str)


def to_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what each cell says, as text; None if it is missing."""
    columns = [frame.iloc[:, place].astype(object) for place in range(frame.shape[1])]
    found = [column.where(column.notna(), None).map(_say) for column in columns]
    made = dict(enumerate(found))
    return pd.DataFrame(made, index=frame.index, dtype=object).set_axis(
        frame.columns, axis=1
    )


def _say(value: Any) -> Any:
    if value is None or type(value) is str:
        text = value
    elif hasattr(value, "tolist") and not isinstance(value, str):
        return _say(value.tolist())
    elif isinstance(value, Mapping | list):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    return text if text is None else SURROGATE.sub("\ufffd", text)
