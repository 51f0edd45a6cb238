"""The report to hand round, in a real browser without a network."""

import itertools
import json
import re

import nbformat
import pandas as pd
import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from paraguard_lab import run
from paraguard_lab.report import croissant, numbers
from paraguard_tools.pages import handout, site
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError

FOUND = numbers.collect_numbers(
    stores.Store("recorded"), [handout.ABSTRACT, paths.ROOT / handout.SITE_INDEX]
)
DR = "dr_near"
CITATION = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
LONG_PAGES = ("data/README.md", "docs/method.md")
"""Pages that take longest; the others are made by the same template."""
KNOWN = pd.concat(
    [FOUND, stores.Store("recorded").read("tables", numbers.NUMBERS_TABLE)]
).drop_duplicates("key")
HREFS = "all => all.map((one) => one.getAttribute('href'))"
RECORD = {"datePublished": "2031-02-03", "version": "9.8.7"}
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
PAPER_WIDTH = 703
"""CSS pixels between the margins of A4, 186 mm."""

HOSTILE = (
    "<img src='https://example.org/x.png' onerror=\"window.ran='image'\"><iframe"
    " src='https://example.org'></iframe>"
)
HOSTILE += (
    "<svg onload=\"window.ran='svg'\"></svg><a"
    " href=\"javascript:window.ran='link'\">here</a>"
)
HOSTILE += (
    "<style>@import 'https://example.org/x.css'; main { display: none }</style><b"
    " onclick='window.ran=1'>bold</b>"
)
SCRIPT = "<table><tr><td>1</td></tr></table><SCRIPT>window.ran='script'</SCRIPT>"


def result(**data):
    names = {
        "html": "text/html",
        "plain": "text/plain",
        "png": "image/png",
        "js": "application/javascript",
    }
    names |= {"markdown": "text/markdown", "plotly": "application/vnd.plotly.v1+json"}
    return new_output(
        "display_data", data={names[name]: value for name, value in data.items()}
    )


def hostile():
    """Two small notebooks with everything that must not run, fetch, clash or skip."""
    outputs = [
        result(
            html=(
                f"<table><tr><th>k</th><td colspan='2'>{HOSTILE}kept"
                " &lt;i&gt;</td></tr></table>"
            )
        ),
        result(html=SCRIPT, plain="the table as text"),
        result(html=SCRIPT, png=PICTURE, plotly={"data": []}, plain="not this"),
        result(plotly={"data": []}, js="window.ran = 'javascript'"),
        result(markdown=f"{HOSTILE} [x](javascript:alert(1))"),
        new_output(
            "stream", name="stdout", text="</pre><script>window.ran='stream'</script>"
        ),
        new_output(
            "error",
            ename="<b>Oops",
            evalue="<script>window.ran='error'</script>",
            traceback=[],
        ),
    ]
    prose = f"""# One
## Same place
### Same place
{HOSTILE} <!--=a.key-->0.5<!--=--> and $x_1 < \\frac{{1}}{{2}}$, $`y`$, $\\unknown{{z}}$

```math
\\sum_i \\theta_i
```

```mermaid
graph <script>window.ran='mermaid'</script>
```

![drawn](../figures/variance_parts.png) ![picture](https://example.org/y.png)
[two](02_two.ipynb#same-place), [here](#same-place), [guide](../docs/reading.md),
[evil](javascript:window.ran='prose')
"""
    code = "print('</pre><script>window.ran = 0</script>')"
    first = new_notebook(
        cells=[new_markdown_cell(prose), new_code_cell(code, outputs=outputs)]
    )
    second = new_notebook(
        cells=[
            new_markdown_cell("# Two\n#### Same place"),
            new_code_cell("x = 1\ny = 2"),
        ]
    )
    return {"01_one": first, "02_two": second}


@pytest.fixture(scope="module")
def small():
    return handout.render_report(hostile(), FOUND, CITATION, RECORD)


@pytest.fixture(scope="module")
def recorded():
    notebooks = {
        path.stem: nbformat.read(path, as_version=4) for path in run.list_notebooks()
    }
    record = json.loads(croissant.CROISSANT_FILE.read_text(encoding="utf-8"))
    return handout.render_report(notebooks, FOUND, CITATION, record)


@pytest.fixture
def show(browser, tmp_path):
    """Open a page offline; whatever it fetched, ran or was refused fails the test."""
    seen = []
    tab = browser.new_page(offline=True)
    tab.on("console", lambda message: seen.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
    tab.on(
        "dialog",
        lambda dialog: (seen.append(f"dialog: {dialog.message}"), dialog.dismiss()),
    )
    tab.on("request", lambda request: seen.append(f"request: {request.url[:80]}"))

    def load(html, width=1200):
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(path.as_uri())
        assert seen.pop(0) == f"request: {path.as_uri()[:80]}"
        return tab

    yield load
    tab.evaluate(
        "new Promise((done) => requestAnimationFrame(() =>"
        " requestAnimationFrame(done)))"
    )
    assert [event for event in seen if not event.startswith("request: data:")] == []
    assert tab.evaluate("window.ran") is None
    tab.close()


def levels(tab):
    return tab.locator("h1, h2, h3, h4, h5, h6").evaluate_all(
        "all => all.map((one) => Number(one.tagName[1]))"
    )


def in_order(found):
    return (
        found[0] == 1
        and found.count(1) == 1
        and all(b <= a + 1 for a, b in itertools.pairwise(found))
    )


def test_a_table_keeps_its_intervals_whole_and_its_words():
    made = handout.sanitize_table(
        "<table><th>too_few_for_dr</th><td>0.5 [-0.1, 1.2]</td><td>[a, b_c]"
        " &lt;b&gt;</td></table>"
    )
    assert (
        "<th>too_<wbr>few_<wbr>for_<wbr>dr</th>" in made
        and "0.5 [-0.1,\u00a01.2]" in made
        and "[a, b_c] &lt;b&gt;" in made
    )


def test_nothing_of_an_output_runs_or_is_fetched(show, small):
    tab = show(small)
    texts = tab.locator(".box:not(.code .box)").all_inner_texts()
    assert (
        "kept <i>" in texts[0]
        and "the table as text" in texts[1]
        and "not this" not in "".join(texts)
    )
    assert "An interactive output" in texts[2]
    assert texts[3:] == [
        "</pre><script>window.ran='stream'</script>",
        "<b>Oops: <script>window.ran='error'</script>",
    ]
    assert (
        tab.locator(
            "script, iframe, main style, .box img, .box a, .box svg, [onerror],"
            " [onclick], [onload]"
        ).count()
        == 0
    )
    assert tab.locator(".box b, .box [colspan='2']").count() == 2
    assert tab.locator("figure img").count() == 1 and tab.locator(
        "figure img"
    ).get_attribute("alt")
    links = tab.locator("a").evaluate_all(
        "all => all.map((one) => one.getAttribute('href'))"
    )
    assert {link.partition(":")[0] for link in links if not link.startswith("#")} == {
        "https"
    }


def test_the_policy_lets_no_script_run_that_stands_in_the_page(
    browser, small, tmp_path
):
    path = tmp_path / "page.html"
    foreign = (
        "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'><link"
        " rel=stylesheet href=y.css></body>"
    )
    path.write_text(small.replace("</body>", foreign), encoding="utf-8")
    tab = browser.new_page()
    fetched, refused = [], []
    tab.on("requestfinished", lambda request: fetched.append(request.url))
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(path.as_uri())
    assert tab.evaluate("window.ran") is None and len(refused) >= 3
    assert [url for url in fetched if not url.startswith("data:")] == [path.as_uri()]
    tab.close()


def test_prose_keeps_its_meaning_without_a_network(show, small):
    tab = show(small)
    prose = tab.locator(".prose").first
    assert (
        f"{HOSTILE} 0.5 and" in prose.inner_text() and "<!--" not in prose.inner_text()
    )
    assert (
        "picture two" in prose.inner_text()
        and prose.locator("img[src^='data:image/png']").count() == 1
    )
    assert (
        r"$x_1 < \frac{1}{2}$" in prose.inner_text()
        and r"\sum_i \theta_i" in prose.inner_text()
    )
    assert "guide (docs/reading.md)" in prose.inner_text()
    assert prose.locator("a[href^='#']").evaluate_all(
        "all => all.map((one) => one.hash)"
    ) == [
        "#02_two-same-place",
        "#01_one-same-place",
    ]


def test_headings_stay_in_order_with_anchors_of_their_own(show, small):
    tab = show(small)
    assert in_order(levels(tab)) and levels(tab) == [1, 2, 2, 3, 4, 2, 3]
    anchors = tab.locator(".notebook [id]").evaluate_all(
        "all => all.map((one) => one.id)"
    )
    assert anchors == [
        "01_one",
        "01_one-same-place",
        "01_one-same-place-2",
        "02_two",
        "02_two-same-place",
    ]


def test_code_is_folded_until_it_is_asked_for(show, small):
    tab = show(small)
    code = tab.locator(".code .highlight")
    assert [one.is_visible() for one in code.all()] == [False, False]
    tab.locator("summary").first.click()
    assert [one.is_visible() for one in code.all()] == [True, False]
    tab.get_by_label("Show all code").check()
    assert [one.is_visible() for one in code.all()] == [True, True]
    assert "y = 2" in code.last.inner_text()
    tab.emulate_media(media="print")
    assert [one.is_visible() for one in code.all()] == [False, False]
    assert "without outputs" in tab.locator(".notebook").last.inner_text()


def test_the_cover_says_what_when_and_after_whom(show, small):
    cover = show(small).locator("header").inner_text()
    known = FOUND.set_index("key")["text"]
    for part in (
        known[DR],
        known["dr_free"],
        known["dr_systems"],
        "2031-02-03",
        "9.8.7",
        CITATION["version"],
        "2512.01037",
    ):
        assert part in cover


def test_the_abstract_has_the_numbers_it_is_given():
    other = FOUND.assign(
        text=FOUND["text"].where(FOUND["key"] != DR, "seldom or often")
    )
    assert "differently seldom or often times" in " ".join(
        handout.render_report({}, other, CITATION, RECORD).split()
    )
    with pytest.raises(DataError, match="no number 'dr_near'"):
        handout.render_report({}, FOUND[FOUND["key"] != DR], CITATION, RECORD)


@pytest.mark.parametrize(
    "page",
    [handout.ABSTRACT, paths.ROOT / handout.SITE_INDEX],
    ids=lambda page: page.stem,
)
def test_the_first_pages_type_no_result(page):
    # What is typed is a temperature, the ends of a scale, the level of an interval and
    # the paper's number.
    text = re.sub(
        r"temperature 0\.7|ratio of [01] (says|that)|95 %"
        r" intervals|2512\.01037(v2)?",
        "",
        page.read_text(),
    )
    text = numbers.NUMBER_PLACE.sub("", text)
    words = r"one of|two of|three|four|five|six|seven|eight|nine"
    assert re.findall(rf"\d[\d.,]*|\b(?:{words})\b", text) == []


def test_an_entity_is_shown_as_its_character(show):
    cells = (
        "| a&nbsp;b | &lt;b&gt; &amp; |\n|---:|---|\n| 0.5 [0.1,&nbsp;0.9] | &#60;i> |"
    )
    notebook = new_notebook(
        cells=[new_markdown_cell(f"# One\n{cells.splitlines()[0]}\n\n{cells}")]
    )
    tab = show(handout.render_report({"01_one": notebook}, FOUND, CITATION, RECORD))
    assert tab.locator("th").all_text_contents() == ["a\u00a0b", "<b> &"]
    assert tab.locator("td").all_text_contents() == ["0.5 [0.1,\u00a00.9]", "<i>"]
    assert (
        tab.locator("th[scope=col]").count() == 2
        and tab.locator("td.short").count() == 2
    )
    assert tab.locator(".prose b, .prose i").count() == 0


SCROLLING = """all => all.filter((one) => {
    const box = one.closest(".box"), edge = box.getBoundingClientRect().right;
    const attached = getComputedStyle(box).backgroundAttachment;
    const hint = attached.includes("local") && box.tabIndex === 0;
    return edge > innerWidth || (one.getBoundingClientRect().right > edge + 1 && !hint);
}).map((one) => one.innerText.slice(0, 60))"""
"""The tables that are cut, or scroll in a box that neither shows it nor takes the
focus.
"""


def assert_readable(tab, width):
    """Nothing is wider than the page, no table is cut, no entity is seen, headings are
    in order.
    """
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.locator(".box table").evaluate_all(SCROLLING) == []
    assert not re.search(r"&(amp;)?\w+;", tab.locator("body").inner_text())
    assert in_order(levels(tab))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 390])
def test_the_recorded_report_is_readable_wide_and_narrow(show, recorded, width):
    tab = show(recorded, width)
    assert_readable(tab, width)
    if width == 1200:  # most tables stand there whole
        cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
        assert tab.locator(".box:has(table)").evaluate_all(cut) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(one, marks=pytest.mark.weekly if one in LONG_PAGES else ())
        for one in handout.SITE_PAGES
    ],
)
def test_every_page_of_the_site_is_readable(show, file):
    stems = [path.stem for path in run.list_notebooks()]
    html = handout.render_page(
        file, numbers.fill_numbers((paths.ROOT / file).read_text(), KNOWN), stems
    )
    pages = {*handout.SITE_PAGES.values(), "report.html", "explorer.html"}
    for width in (1200, 390):
        tab = show(html, width)
        assert_readable(tab, width)
        assert [
            (one["id"], one["nodes"][0]["html"])
            for one in Axe().run(tab).response["violations"]
        ] == []
    ids = tab.locator("[id]").evaluate_all("all => all.map((one) => one.id)")
    assert (
        len(ids) == len(set(ids))
        and tab.locator("script, iframe, [onerror]").count() == 0
    )
    for link in tab.locator("a").evaluate_all(
        "all => all.map((one) => one.getAttribute('href'))"
    ):
        page, _, place = link.partition("#")
        assert (
            page in pages or link.startswith("https://") or (not page and place in ids)
        ), link
        assert page != handout.SITE_PAGES[file] or not place or place in ids, link
        assert (
            page != "report.html"
            or not place
            or any(place.startswith(stem) for stem in stems)
        ), link
    if file == handout.SITE_INDEX:
        assert {
            link.partition("#")[0] for link in tab.locator("main a").evaluate_all(HREFS)
        } >= pages - {"index.html"}
        assert tab.locator("img[src^='data:image/png']").get_attribute("alt")
        assert (
            FOUND.set_index("key")["text"]["dr_free"]
            in tab.locator("strong").inner_text()
        )


@pytest.mark.slow
def test_one_command_makes_a_site_whose_links_lead_somewhere(
    command, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        site,
        "write_explorer",
        lambda config, folder: stores.write_text(folder / "explorer.html", "<p>"),
    )
    assert command("html", "--out", str(tmp_path / "site")).error == ""
    pages = {
        path.name: path.read_text(encoding="utf-8")
        for path in (tmp_path / "site").iterdir()
    }
    assert set(pages) == {
        "index.html",
        "report.html",
        "explorer.html",
        "data.html",
        "method.html",
        "leaderboard.html",
    }
    found = [
        link for html in pages.values() for link in re.findall(r'href="([^"]*)"', html)
    ]
    inner = {link for link in found if not link.startswith(("https://", "#", "data:"))}
    assert len(inner) > 10
    for page, _, place in (link.partition("#") for link in inner):
        assert page in pages and (not place or f'id="{place}"' in pages[page]), (
            page,
            place,
        )
    assert "<!--=" not in "".join(pages.values())


def test_a_page_of_the_site_shows_markup_as_text_and_links_to_the_others(show):
    source = (
        f"---\nsize: [x]\n---\n# Method\n## Part\n### Below\n## Next\n{HOSTILE}\n\n| |"
        " a |\n|---|---|\n| b | c |\n\n"
    )
    source += (
        "[card](../data/README.md#uses) [03](../notebooks/03_x.ipynb) [part](#part)"
        " [code](../paraguard_utils/x.py#L1)"
    )
    tab = show(handout.render_page("docs/method.md", source, ["03_x"]))
    assert levels(tab) == [1, 2, 3, 2] and HOSTILE in tab.locator("main").inner_text()
    assert "size:" not in tab.locator(
        "body"
    ).inner_text() and "code (paraguard_utils/x.py#L1)" in tab.inner_text("main")
    assert tab.locator("main > p:last-child a").evaluate_all(HREFS) == [
        "data.html#data-uses",
        "report.html#03_x",
        "method.html#method-part",
    ]
    assert (
        tab.locator("thead td").count() == 1
        and tab.locator("[aria-current]").inner_text() == "Method"
    )


@pytest.mark.slow
def test_the_recorded_report_can_be_handed_round(show, recorded):
    assert len(recorded.encode()) < 15e6
    tab = show(recorded)
    titles = tab.locator(".notebook h2").all_inner_texts()
    assert [title[:2] for title in titles] == [
        path.stem[:2] for path in run.list_notebooks()
    ]
    assert in_order(levels(tab))
    ids = tab.locator("[id]").evaluate_all("all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    inner = tab.locator("a[href^='#']").evaluate_all(
        "all => all.map((one) => decodeURIComponent(one.hash.slice(1)))"
    )
    assert set(inner) <= set(ids)
    listed = tab.locator("nav a").evaluate_all(
        "all => all.map((one) => one.hash.slice(1))"
    )
    assert listed == tab.locator(".notebook :is(h2, h3, h4)").evaluate_all(
        "all => all.map((one) => one.id)"
    )
    stored = [
        cell
        for path in run.list_notebooks()
        for cell in nbformat.read(path, as_version=4).cells
    ]
    shown = [out for cell in stored for out in cell.get("outputs", ())]
    assert (
        tab.locator("figure").count()
        == sum("image/png" in out.get("data", {}) for out in shown)
        > 5
    )
    kinds = [out.get("data", {}) for out in shown]
    made = sum(data.get("text/markdown", "").startswith("|") for data in kinds)
    assert tab.locator(".box table").count() == made > 30
    assert "&lt;br&gt;" not in recorded
    assert tab.locator("details[open]").count() == 0


def test_the_recorded_report_fits_a_phone(show, recorded):
    tab = show(recorded, width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    beyond = (
        "all => all.filter((one) => one.getBoundingClientRect().right >"
        " innerWidth).length"
    )
    assert (
        tab.locator(
            "main .box, main figure, main img, main p, main pre.sentences, nav"
        ).evaluate_all(beyond)
        == 0
    )
    scrolls = "all => all.filter((one) => one.scrollWidth > one.clientWidth).length"
    assert tab.locator(".box").evaluate_all(scrolls) > 5


@pytest.mark.slow
@pytest.mark.weekly
def test_nothing_is_cut_in_print(show, recorded):
    tab = show(recorded, width=PAPER_WIDTH)
    tab.emulate_media(media="print")
    beyond = (
        "all => all.filter((one) => one.getBoundingClientRect().right >"
        f" {PAPER_WIDTH + 1}).map((e) => e.innerText)"
    )
    assert (
        tab.locator("main :is(table, pre, figure, img, p, svg)").evaluate_all(beyond)
        == []
    )
    pdf = tab.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > len(run.list_notebooks()) + 1
