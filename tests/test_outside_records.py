"""What `outside_records.py` computes, the package computes, and the record says."""

import math

import numpy as np
import outside_records as outside
import pandas as pd
import pytest

from paraguard_lab.public_records import lent, measures, sources
from paraguard_lab.report import numbers
from paraguard_utils import paths, stores
from paraguard_utils.models import encoder

RECORDED = stores.Store("recorded")
SHARED = paths.ROOT.parent / "shared" / "data" / "public"
needs_sources = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the sources' own files are not there"
)


def compare(own, table, *keys):
    """Compare all columns of rows by key with those of a table, to 1e-9."""
    rows = {tuple(row[key] for key in keys): row for row in table.to_dict("records")}
    own = {key if isinstance(key, tuple) else (key,): row for key, row in own.items()}
    assert own.keys() == rows.keys()
    for key, row in own.items():
        found = {name: rows[key][name] for name in row}
        assert found == pytest.approx(row, rel=1e-9, abs=1e-9, nan_ok=True), key


def compare_with_record(own, name, *keys, about=None):
    """Compare rows by key with those of a recorded table, to its five digits."""
    table = RECORDED.read("tables", name)
    if about is not None:
        table = table.query(about)
    rounded = {
        key: {column: round_as_recorded(value) for column, value in row.items()}
        for key, row in own.items()
    }
    compare(rounded, table, *keys)


def round_as_recorded(value):
    if isinstance(value, bool | np.bool_) or math.isnan(value):
        return value
    return float(f"{value:.5g}")


def all_tiers(rows):
    counts = sources.count_by_prompt(rows.assign(setting="all tiers"))
    return measures.tabulate_record_chance(counts, "triples")


TRIPLES = sources.read_recorded_decisions("triples")


@pytest.mark.slow
def test_chance():
    keys = ["system", "setting", "judge"]
    own = outside.chance_of_stability()
    counts = sources.read_counts("stability")
    compare(own, measures.tabulate_record_chance(counts, "stability"), *keys)
    compare_with_record(own, "record_chance", *keys, about="source == 'stability'")
    triples = outside.chance_of_triples()
    compare(triples, all_tiers(TRIPLES), "system")
    compare_with_record(triples, "record_chance", "system", about="source == 'triples'")
