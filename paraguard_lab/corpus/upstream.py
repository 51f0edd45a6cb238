"""Read files as others publish them."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError


def read_upstream_csv(
    path: Path, columns: Iterable[str] = (), advice: str = "pass the upstream file"
) -> pd.DataFrame:
    """Read an upstream CSV file with every field as text, empty fields as "".

    Raise DataError if it is not CSV in UTF-8, has no rows, or lacks a column; `advice`
    is what to do about that.
    """
    where = paths.display_path(path)
    rows = stores.read_csv(path, dtype=str)
    if rows.empty:
        raise DataError(f"{where}: there are no rows; {advice}")
    for column in columns:
        if column not in rows:
            raise DataError(f"{where}: column {column!r} is missing; {advice}")
    return rows
