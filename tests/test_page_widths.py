"""Notebooks as GitHub shows them: pictures are there, no table is wider than its cell."""

import subprocess

import pytest
from nbconvert import HTMLExporter

from paraguard_lab import run
from paraguard_utils import paths

WIDTH = 778
"""Pixels that GitHub gives a cell."""

CSS = """
body, table { font: 14px/1.5 "Liberation Sans", Arial, sans-serif; }
body { width: 778px; margin: 0; }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid #ccc; }
pre, code { font: 12px/1.45 "Liberation Mono", monospace; white-space: pre-wrap; margin: 0; }
img { max-width: 100%; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
"""
"""What decides widths in GitHub's viewer."""

NOTEBOOKS = run.list_notebooks()


@pytest.fixture(scope="module")
def exporter():
    """What makes a page of a notebook, where the font that decides widths is."""
    command = ["fc-match", "Liberation Sans"]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    if "Liberation" not in found:
        pytest.skip("Liberation Sans is not installed: another font is wider")
    return HTMLExporter(template_name="basic", exclude_input=True)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_there_and_tables_fit(path, browser, exporter, tmp_path):
    html, _ = exporter.from_filename(str(path))
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    base = (  # pictures are named relative to the notebooks
        f'<base href="{paths.NOTEBOOKS.as_uri()}/">'
    )
    file = tmp_path / "notebook.html"
    file.write_text(
        f"<!doctype html><meta charset=utf-8>{base}<style>{CSS}</style>{html}",
        encoding="utf-8",
    )
    page.goto(file.as_uri())
    assert page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
    wide = page.evaluate(
        """() => [...document.querySelectorAll("table")].filter((one) => one.scrollWidth > one.clientWidth + 1)
                 .map((one) => one.scrollWidth + " px: " + one.innerText.slice(0, 80))"""
    )
    assert wide == []
    page.close()
