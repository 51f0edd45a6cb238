"""Pages to hand round or to publish: all notebooks in one report, and Markdown files.

None needs a network.

nbconvert lays each notebook out by `handout_template/`: code folded, prose and outputs
shown. Outputs are data: an HTML output is cut down to its table, one with a script is
replaced by its picture or its text, and the page's content security policy lets no
script run and nothing be fetched.
"""

import base64
import html
import mimetypes
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jinja2
from markupsafe import Markup
from mistune.util import safe_entity
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat import NotebookNode
from traitlets.config import Config

from paraguard_lab.report import numbers
from paraguard_utils import paths
from paraguard_utils.schemas import Table

_TEMPLATE = Path(__file__).with_name("handout_template")
ABSTRACT = _TEMPLATE / "abstract.md"
SITE_INDEX = "paraguard_tools/pages/handout_template/index.md"
# The site's page of each Markdown file, beside `report.html` and `explorer.html`
SITE_PAGES = {
    SITE_INDEX: "index.html",
    "data/README.md": "data.html",
    "docs/method.md": "method.html",
    "leaderboard/README.md": "leaderboard.html",
}

_OUTPUT_KINDS = (
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/latex",
    "text/plain",
)
"""Kinds of output that are shown, the best first."""

_TABLE_TAGS = "table caption thead tbody tfoot tr th td"
_TEXT_TAGS = "div p br pre code b strong i em sub sup ul ol li"
_TAGS = f"{_TABLE_TAGS} {_TEXT_TAGS}".split()
"""What an HTML output may hold."""

_SHORT_CELL = re.compile(r"<td([^>]*)>((?:[^<]|<br ?/?>){,48})</td>")
_INTERVAL = re.compile(r"(\[[-+.\d]+), (?=[-+.\d]+\])")


def render_report(
    notebooks: Mapping[str, NotebookNode],
    filled: Table,
    citation: Mapping[str, Any],
    record: Mapping[str, Any],
) -> str:
    """Make the report as HTML of notebooks by stem, in order.

    `filled` has the numbers (key, text) that the abstract names, of which a missing one
    is a DataError; `citation` is what `CITATION.cff` holds, `record` has datePublished
    and version of the recorded data, as `data/croissant.json`.
    """
    abstract = ABSTRACT.read_text(encoding="utf-8")
    abstract = numbers.remove_marks(numbers.fill_numbers(abstract, filled))
    pages = {f"notebooks/{stem}.ipynb": f"#{stem}" for stem in notebooks}
    sections = []
    for file, notebook in zip(pages, notebooks.values(), strict=True):
        sections.append(_render_section(file, notebook, pages))
    return _load_template("page.html.j2").render(
        abstract=Markup(_Prose("abstract.md", {}).html(abstract)),
        citation=citation,
        record=record,
        sections=sections,
    )


def render_page(file: str, markdown: str, stems: Iterable[str] = ()) -> str:
    """Make a page of the site as HTML of a Markdown file that `SITE_PAGES` names.

    `stems` are the report's notebooks.

    A header for machines and the marks of numbers are left out. Links to other pages of
    the site and to notebooks of the report work; any other file is named only.
    """
    pages = {}
    for name, page in SITE_PAGES.items():
        pages[name] = f"{page}#{page.removesuffix('.html')}"
    for stem in stems:
        pages[f"notebooks/{stem}.ipynb"] = f"report.html#{stem}"
    for page in ("report.html", "explorer.html"):
        pages[posixpath.join(posixpath.dirname(SITE_INDEX), page)] = page
    without_header = re.sub(r"(?s)\A---\n.*?\n---\n", "", markdown)
    prose = _Prose(file, pages, shift=0)
    body = prose.html(numbers.remove_marks(without_header))
    return _load_template("document.html.j2").render(
        body=Markup(body), headings=prose.headings, page=SITE_PAGES[file]
    )


def _load_template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def _render_section(
    file: str, notebook: NotebookNode, pages: Mapping[str, str]
) -> dict[str, Any]:
    """Lay out one notebook.

    Returns html, and its headings in order, of which the first is its title.
    """
    prose = _Prose(file, pages)
    exporter = HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": _OUTPUT_KINDS}}),
        template_name=_TEMPLATE.name,
        extra_template_basedirs=[str(_TEMPLATE.parent)],
        filters={
            "markdown2html": prose.html,
            "table": sanitize_table,
            "aligned": re.compile(r"\S {2,}\S").search,
        },
        preprocessors=[_remove_scripts],
    )
    body, _ = exporter.from_notebook_node(notebook)
    return {"html": Markup(body), "headings": prose.headings}


def _remove_scripts(
    notebook: NotebookNode, resources: dict[str, Any]
) -> tuple[NotebookNode, dict[str, Any]]:
    """Remove outputs that need a script, and the marks of numbers in prose."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = numbers.remove_marks(cell.source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "<script" in data.get("text/html", "").lower():
                del data["text/html"]
            if data and not set(_OUTPUT_KINDS) & set(data):
                data["text/plain"] = (
                    "An interactive output: open the notebook to see it."
                )
    return notebook, resources


def sanitize_table(output: str) -> str:
    """Reduce an HTML output to its table and text: no scripts, styles, links, pictures.

    Short cells get the class `short`, intervals stay on one line, and names of columns
    may break at underscores.
    """
    without_scripts = re.sub(
        r"<(script|style)\b.*?</\1\s*>", "", output, flags=re.DOTALL | re.IGNORECASE
    )
    spans = ["colspan", "rowspan"]
    sanitizer = SanitizeHTML(
        tags=_TAGS, attributes={"th": spans, "td": spans}, strip=True
    )
    table = _mark_short(sanitizer.sanitize_html_tags(without_scripts))
    return re.sub(r"<th>\w+</th>", lambda name: name[0].replace("_", "_<wbr>"), table)


def _mark_short(cells: str) -> str:
    """Mark short cells, and keep intervals on one line."""
    cells = _INTERVAL.sub("\\1,\u00a0", cells)
    return _SHORT_CELL.sub(r'<td class="short"\1>\2</td>', cells)


class _Prose(IPythonRenderer):
    """Markdown of one file as HTML, headings moved down by `shift`.

    HTML in it is shown as text, formulas as TeX.

    `pages` has the addresses of files by their path in the project; the anchor of one
    is its first heading.
    """

    def __init__(self, file: str, pages: Mapping[str, str], shift: int = 1) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False)
        self.file = file
        self.pages = pages
        self.stem = pages.get(file, "").partition("#")[2]
        self.headings: list[dict[str, Any]] = []
        self.shift = shift
        self.level = shift

    def html(self, source: str) -> str:
        return MarkdownWithMath(renderer=self).render(source)

    def text(self, text: str) -> str:
        """Show an entity, such as a non-breaking space, as its character."""
        return safe_entity(text)

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """Move a heading down, and never two levels below the one before."""
        self.level = min(level + self.shift, self.level + 1)
        words = Markup(text).striptags()
        anchor = self._choose_anchor(words)
        self.headings.append(
            {"anchor": anchor, "text": Markup.escape(words), "level": self.level}
        )
        return f'<h{self.level} id="{anchor}">{text}</h{self.level}>\n'

    def _choose_anchor(self, words: str) -> str:
        """Return a heading's anchor: the file's, then GitHub's; no two are alike."""
        taken = {heading["anchor"] for heading in self.headings}
        if not taken:
            return self.stem
        github_slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        anchor = slug = f"{self.stem}-{github_slug}"
        number = 1
        while anchor in taken:
            number += 1
            anchor = f"{slug}-{number}"
        return anchor

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Keep links to the web and to what `pages` has.

        Show only the name of another file.
        """
        scheme = urlsplit(url).scheme
        if scheme in ("http", "https"):
            return super().link(text, url, title)
        if scheme:
            return text
        file, _, place = url.partition("#")
        path = self.file
        if file:
            folder = posixpath.dirname(self.file)
            path = posixpath.normpath(posixpath.join(folder, file))
        if path in self.pages:
            address = self.pages[path]
            if place:
                address = f"{address}-{place}"
            return super().link(text, address, title)
        return f"{text} (<code>{html.escape(path + url[len(file) :])}</code>)"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Embed a picture of the project; replace any other by its description."""
        path = ((paths.ROOT / self.file).parent / url).resolve()
        is_ours = path.is_relative_to(paths.ROOT) and path.is_file()
        if urlsplit(url).scheme or not is_ours:
            return html.escape(Markup(text).striptags())
        kind, _ = mimetypes.guess_type(path)
        content = base64.b64encode(path.read_bytes()).decode()
        return super().image(text, f"data:{kind};base64,{content}", title)

    def inline_html(self, html: str) -> str:
        """Keep line breaks, which table cells need; show any other HTML as text."""
        return "<br>" if html == "<br>" else super().inline_html(html)

    def table(self, text: str) -> str:
        """Put a table into a box that scrolls, by keys too."""
        cells = re.sub("<th([^>]*)></th>", r"<td\1></td>", _mark_short(text))
        cells = re.sub("<th(?=[ >])", '<th scope="col"', cells)
        return (
            '<div class="box" role="group" aria-label="Table"'
            f' tabindex="0"><table>{cells}</table></div>\n'
        )

    def block_code(self, code: str, info: str | None = None) -> str:
        """Show diagrams and formulas as their source."""
        if (info or "").strip().startswith(("math", "mermaid")):
            info = None
        return super().block_code(code, info)
