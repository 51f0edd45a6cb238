"""Write decisions and measures of the public records into `data/public_records/`.

It needs the sources' files. The notebook 08 reads what is written here.
"""

from pathlib import Path

import pandas as pd

from paraguard_lab.public_records import lent, measures
from paraguard_lab.public_records.sources import (
    FOLDER,
    SOURCES,
    RecordedDecisions,
    count_by_prompt,
)
from paraguard_utils.errors import DataError

DIGITS = "%.5g"


def build_records(folder: Path, into: Path = FOLDER) -> list[Path]:
    """Read all sources from a folder, and write what is kept of them.

    Decisions by row where the source's licence allows it, else counts; and what needs
    the prompts themselves or the single answers of a source that has no licence.

    Raises
    ------
    DataError
        A file of a source is not there.
    """
    into.mkdir(parents=True, exist_ok=True)
    written = []

    def write(name: str, table: pd.DataFrame) -> None:
        path = into / f"{name}.csv"
        table.to_csv(path, index=False, float_format=DIGITS, lineterminator="\n")
        written.append(path)

    for name, source in SOURCES.items():
        try:
            decisions = source.read(folder)
        except FileNotFoundError as error:
            raise DataError(
                f"{folder}: {error.filename} of the source {name} is not there"
            ) from None
        if source.by_row:
            write(name, decisions)
        else:
            write(f"{name}_counts", count_by_prompt(decisions))
            for what, table in _measure_single_answers(folder, decisions).items():
                write(f"{name}_{what}", table)
    return written


def _measure_single_answers(
    folder: Path, decisions: RecordedDecisions
) -> dict[str, pd.DataFrame]:
    """Measure what counts cannot give of the record `stability`."""
    prompts = lent.read_stability_prompts(folder)
    systems = lent.lend_tokens(decisions, prompts, lent.query_lender(prompts))
    return {
        "temperatures": measures.tabulate_temperatures(decisions),
        "judges": measures.tabulate_judges(decisions),
        "neighbours": lent.tabulate_neighbours(decisions, prompts),
        "confusion": lent.tabulate_confusion(systems),
        "pairs": lent.tabulate_record_pairs(systems),
    }
