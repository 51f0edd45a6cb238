"""Links in executed notebooks, wherever these are read."""

import os

import pytest

from paraguard_lab.report import links
from paraguard_utils import paths

LINKS = {
    "[x](03_scoring.ipynb#table-1)": "../../../notebooks/03_scoring.ipynb#table-1",
    "[x](beyond/06_validity.ipynb)": "../../../notebooks/beyond/06_validity.ipynb",
    "[x](../03_scoring.ipynb)": "../../../notebooks/03_scoring.ipynb",
    "[x](06_validity.ipynb)": "../../../notebooks/beyond/06_validity.ipynb",
    "[x](../docs/method.md)": "../../../docs/method.md",
    "[x](../../docs/method.md)": "../../../docs/method.md",
    "![x](../figures/shared_wording.png)": "../../../figures/shared_wording.png",
    "[x](../data/tables/wording.csv)": "../../../data/tables/wording.csv",
    "[x](https://arxiv.org/abs/2512.01037v2)": "https://arxiv.org/abs/2512.01037v2",
    "[x](#words)": "#words",
    "[x](no_such_file.md)": "no_such_file.md",
}
"""Links as authors write them, and where they lead from results/mine/notebooks."""


@pytest.mark.parametrize("link", LINKS)
def test_links_work_where_the_executed_notebook_is_read(link):
    rewritten = links.rewrite_links(link, paths.RESULTS / "mine" / "notebooks")
    assert rewritten == f"{link.partition('](')[0]}]({LINKS[link]})"


def test_links_lead_to_what_the_run_has_made(results):
    run = results / "mine"
    for name in ("tables/wording.csv", "notebooks/03_scoring.ipynb"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    text = "[a](../data/tables/wording.csv) [b](../03_scoring.ipynb)"
    rewritten = links.rewrite_links(text, run / "notebooks")
    assert rewritten == "[a](../tables/wording.csv) [b](03_scoring.ipynb)"


def test_links_in_notebooks_stay_as_they_are_written():
    text = "[a](../data/tables/wording.csv) [b](06_validity.ipynb)"
    here = paths.NOTEBOOKS
    assert links.rewrite_links(text, here) == text.replace("(06", "(beyond/06")
    beyond = links.rewrite_links(text, here / "beyond")
    assert beyond == text.replace("(../", "(../../")


def test_links_that_cells_made_are_rewritten_too(results, tmp_path):
    """A live table is linked from notebooks/, and read beside the run's notebook."""
    table = results / "mine" / "tables" / "t.csv"
    table.parent.mkdir(parents=True)
    table.write_text("")
    made = os.path.relpath(table, paths.NOTEBOOKS)
    rewritten = links.rewrite_links(f"[t]({made})", results / "mine" / "notebooks")
    assert rewritten == "[t](../tables/t.csv)"
