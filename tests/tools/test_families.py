"""The table in docs/usage.md says what becomes of models of many families."""

import families
import pytest

from paraguard_utils import paths


@pytest.mark.slow
@pytest.mark.weekly
def test_the_table_of_families_is_what_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", paths.CACHE)  # restored afterwards
    made = families.make_table(tmp_path)
    assert made == families.read_table(), "python tests/families.py writes it anew"
