"""Notebooks as GitHub shows them: no table wider than its cell, no wall of text, no notebook without end."""

import subprocess

import nbformat
import pytest
from nbconvert import HTMLExporter

from paraguard_utils import paths, run

WIDTH = 778
TALLEST = {"00_results": 3000, "06_validity": 8000, "07_remedies": 8000, "A3_more": 60000}
TALLEST |= dict.fromkeys(("01_corpus_building", "02_querying", "03_scoring", "04_cohort_analysis"), 6000)
TALLEST |= {"05_guard_comparison": 6000, "A1_labels": 9200, "A2_writers": 9000}
"""Pixels that GitHub gives a cell, and how tall a notebook may become in them."""

PRINTED = 600
"""Characters of plain text that a cell may print."""

CSS = """
body, table { font: 14px/1.5 "Liberation Sans", Arial, sans-serif; }
body { width: 778px; margin: 0; }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid #ccc; }
pre, code { font: 12px/1.45 "Liberation Mono", monospace; white-space: pre-wrap; margin: 0; }
img { max-width: 100%; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
"""
"""What decides widths and heights in GitHub's viewer."""

NOTEBOOKS = run.list_notebooks()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_cell_prints_a_wall_of_text(path):
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        outputs = cell.outputs if cell.cell_type == "code" else []
        streams = [output.text for output in outputs if output.output_type == "stream"]
        plain = [output.data["text/plain"] for output in outputs if set(output.get("data", {})) == {"text/plain"}]
        assert sum(map(len, streams + plain)) <= PRINTED, f"cell {number}"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tables_fit_and_notebooks_end(path, browser, tmp_path):
    if "Liberation" not in subprocess.run(["fc-match", "Liberation Sans"], capture_output=True, text=True).stdout:
        pytest.skip("Liberation Sans is not installed: another font is wider")
    html, _ = HTMLExporter(template_name="basic").from_filename(str(path))
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    base = f'<base href="{paths.NOTEBOOKS.as_uri()}/">'  # pictures are named relative to the notebooks
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{base}<style>{CSS}</style>{html}", encoding="utf-8")
    page.goto(file.as_uri())
    assert page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
    wide = page.evaluate(
        """() => [...document.querySelectorAll("table")].filter((one) => one.scrollWidth > one.clientWidth + 1)
                 .map((one) => one.scrollWidth + " px: " + one.innerText.slice(0, 80))"""
    )
    assert wide == []
    assert page.evaluate("document.body.scrollHeight") <= TALLEST.get(path.stem, 30000)
    page.close()
