"""The report to hand round: all notebooks on one page that needs no network.

nbconvert lays each notebook out by `handout_template/`: code folded, prose and outputs shown. Outputs are data: an HTML
output is cut down to its table, one with a script is replaced by its picture or its text, and the page's content
security policy lets no script run and nothing be fetched.
"""

import base64
import html
import mimetypes
import posixpath
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jinja2
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat import NotebookNode
from traitlets.config import Config

from paraguard_utils import paths
from paraguard_utils.report import numbers
from paraguard_utils.schemas import Table

_TEMPLATE = Path(__file__).with_name("handout_template")
_OUTPUT_KINDS = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/latex", "text/plain")
"""Kinds of output that are shown, the best first."""

_TAGS = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"]
_TAGS += ["div", "p", "br", "pre", "code", "b", "strong", "i", "em", "sub", "sup", "ul", "ol", "li"]
"""What an HTML output may hold."""

_COLUMN_NAME = re.compile(r"<th>\w+</th>")
_SHORT_CELL = re.compile(r"<td>([^<]{,48})</td>")
_INTERVAL = re.compile(r"(\[[-+.\d]+), (?=[-+.\d]+\])")


def render_report(
    notebooks: Mapping[str, NotebookNode], found: Table, citation: Mapping[str, Any], record: Mapping[str, Any]
) -> str:
    """Make the report as HTML of notebooks by stem, in order.

    `found` has the numbers (key, text) that the abstract names, of which a missing one is a DataError; `citation` is
    what `CITATION.cff` holds, `record` has datePublished and version of the recorded data, as `data/croissant.json`.
    """
    abstract = (_TEMPLATE / "abstract.md").read_text(encoding="utf-8")
    abstract = numbers.remove_marks(numbers.fill_numbers(abstract, found))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        abstract=Markup(_Prose("abstract", ()).html(abstract)),
        citation=citation,
        record=record,
        sections=[_section(stem, notebook, list(notebooks)) for stem, notebook in notebooks.items()],
    )


def _section(stem: str, notebook: NotebookNode, stems: list[str]) -> dict[str, Any]:
    """Lay out one notebook: html, and its headings in order, of which the first is its title."""
    prose = _Prose(stem, stems)
    exporter = HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": _OUTPUT_KINDS}}),
        template_name=_TEMPLATE.name,
        extra_template_basedirs=[str(_TEMPLATE.parent)],
        filters={"markdown2html": prose.html, "table": sanitize_table, "aligned": re.compile(r"\S {2,}\S").search},
        preprocessors=[_remove_scripts],
    )
    body, _ = exporter.from_notebook_node(notebook)
    return {"html": Markup(body), "headings": prose.headings}


def _remove_scripts(notebook: NotebookNode, given: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """Remove outputs that need a script to be seen, and the marks of numbers in prose."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = numbers.remove_marks(cell.source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "<script" in data.get("text/html", "").lower():
                del data["text/html"]
            if data and not set(_OUTPUT_KINDS) & set(data):
                data["text/plain"] = "An interactive output: open the notebook to see it."
    return notebook, given


def sanitize_table(output: str) -> str:
    """Cut an HTML output down to its table and text: no scripts, styles, links or pictures.

    Short cells get the class `short`, intervals stay on one line, and names of columns may break at underscores.
    """
    bare = re.sub(r"<(script|style)\b.*?</\1\s*>", "", output, flags=re.DOTALL | re.IGNORECASE)
    attributes = {"th": ["colspan", "rowspan"], "td": ["colspan", "rowspan"]}
    cleaned = SanitizeHTML(tags=_TAGS, attributes=attributes, strip=True).sanitize_html_tags(bare)
    return _COLUMN_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), _mark_short(cleaned))


def _mark_short(cells: str) -> str:
    """Mark short cells, and keep intervals on one line."""
    return _SHORT_CELL.sub(r'<td class="short">\1</td>', _INTERVAL.sub("\\1,\u00a0", cells))


class _Prose(IPythonRenderer):
    """Markdown of one notebook as HTML. HTML in it is shown as text, formulas as TeX."""

    def __init__(self, stem: str, stems: list[str] | tuple[str, ...]) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False)
        self.stem, self.stems = stem, stems
        self.headings: list[dict[str, str]] = []
        self.level = 1  # of the page's title

    def html(self, source: str) -> str:
        return MarkdownWithMath(renderer=self).render(source)

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """Put a heading one level down, and never two levels below the one before."""
        self.level = min(level, self.level) + 1
        taken = {one["anchor"] for one in self.headings}
        words = Markup(text).striptags()
        github_slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        slug = f"{self.stem}-{github_slug}" if taken else self.stem
        anchor = next(name for n in count(1) if (name := f"{slug}-{n}" if n > 1 else slug) not in taken)
        self.headings.append({"anchor": anchor, "text": Markup.escape(words)})
        return f'<h{self.level} id="{anchor}">{text}</h{self.level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Keep links to the page's own places and to the web; show only the name of another file."""
        if scheme := urlsplit(url).scheme:
            return super().link(text, url, title) if scheme in ("http", "https") else text
        file, _, place = url.partition("#")
        stem = posixpath.basename(file).removesuffix(".ipynb") if file else self.stem
        if stem in (self.stem, *self.stems):
            return super().link(text, f"#{stem}-{place}" if place else f"#{stem}", title)
        return f"{text} (<code>{html.escape(posixpath.normpath(posixpath.join('notebooks', url)))}</code>)"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Embed a picture of the project; replace any other by its description."""
        path = (paths.NOTEBOOKS / url).resolve()
        if urlsplit(url).scheme or not path.is_relative_to(paths.ROOT) or not path.is_file():
            return html.escape(Markup(text).striptags())
        kind, _ = mimetypes.guess_type(path)
        return super().image(text, f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}", title)

    def inline_html(self, html: str) -> str:
        """Keep line breaks, which table cells need; show any other HTML as text."""
        return "<br>" if html == "<br>" else super().inline_html(html)

    def table(self, text: str) -> str:
        """Put a table into a box that scrolls."""
        return f'<div class="box"><table>{_mark_short(text)}</table></div>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        """Show diagrams and formulas as their source."""
        return super().block_code(code, None if (info or "").strip().startswith(("math", "mermaid")) else info)
