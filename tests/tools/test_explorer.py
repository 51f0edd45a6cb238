"""The page on which decisions are explored, in a real browser."""

import itertools
import json
from dataclasses import replace
from urllib.parse import parse_qs, urldefrag

import numpy as np
import pandas as pd
import pytest
import worlds
from axe_playwright_python.sync_playwright import Axe
from recorded import recorded_systems

from paraguard_lab.analysis import guarded
from paraguard_lab.corpus import fidelity
from paraguard_tools.pages import explorer
from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis import confusion, drift, pipeline
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS, Scoring
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.errors import DataError

RECORDED = stores.Store("recorded")
FILES = stores.CorpusFiles(RECORDED, "paraguard_mini")
LONG_VIEWS = ("refusals", "clusters", "wordings")
"""Views whose check for accessibility takes longest; the others have the same parts."""

LOOKS = [("light", 1280), ("dark", 390)], [("light", 390), ("dark", 1280)]
"""Colours and widths in which pages are looked at; a weekly run takes the second two."""

VIEWS = {
    "wordings": "Refused beside answered",
    "refusals": "Refusals",
    "clusters": "Every system",
    "compare": "Two systems",
    "review": "Review",
}
ALL = "#view=refusals&system=&outcome="
FEW = ", too few to judge"

HOSTILE_PROMPT = (
    """<img src=x onerror="window.ran='prompt'"> & """
    "</script><script>window.ran='script'</script>"
)
HOSTILE_ANSWER = (
    "<!--<script>window.ran='answer'</script> &amp; \u2028<iframe"
    " src='javascript:alert(1)'>"
)
HOSTILE_TOKEN = "<svg/onload=window.ran='token'>"
HOSTILE_TITLE = "Alpha <b onmouseover=alert(1)>"
HOSTILE_CATEGORY = """hate"><img src=x onerror=alert(2)>"""
FORMULA = """=HYPERLINK("https://example.org","click")"""
LONG = "x" * 300  # nothing to break it at

RISKS = [0.45, 0.50, 0.55, 0.60, 0.65, 0.40, 0.59, 0.30]
STRATEGIES = ["seed", "lexical", "register", "rewrite"] * 2
# Two models with rejections, one without, and a guard.
LABELS = {
    "alpha": [
        "reject",
        "reject",
        "accept",
        "accept",
        "reject",
        "accept",
        "unparsed",
        "accept",
    ],
    "beta": [
        "accept",
        "reject",
        "accept",
        "accept",
        "accept",
        "reject",
        "accept",
        "accept",
    ],
    "gamma": ["accept"] * 8,
    "guard": [
        "accept",
        "accept",
        "accept",
        "reject",
        "accept",
        "accept",
        "accept",
        "accept",
    ],
}
# centre, neighbour, rank, similarity, drift, prob_shift, ppl_relative, ppl_clipped
PAIRS = {
    "alpha": [
        # score 0.4 * 0.5 + 0.1 * 0.2 + 0.5 * 0.4 = 0.42, clipped 0.2 + 0.02 + 0.5 =
        # 0.72
        ("p000", "p002", 1, 0.9, 0.5, 0.2, 0.4, 1.0),
        # 0.4 * 0.25 + 0.1 * 1 + 0.5 * 0.2 = 0.3, clipped 0.1 + 0.1 + 0.25 = 0.45
        ("p000", "p007", 2, 0.3, 0.25, 1.0, 0.2, 0.5),
        ("p001", "p003", 1, 0.7, 1.0, 1.0, 1.0, 0.0),  # 1.0, clipped 0.5
        ("p001", "p002", 2, 0.6, 1.0, 1.0, 1.0, 0.0),
        ("p004", "p005", 1, 0.5, 0.0, 0.0, 0.2, 1.0),  # 0.1, clipped 0.5
    ],
    "beta": [
        ("p001", "p000", 1, 0.8, 0.5, 0.0, 0.6, 0.6),  # 0.5, both
        ("p005", "p004", 1, 0.4, 0.5, 0.0, 0.0, 0.1),  # 0.2, clipped 0.25
    ],
    "gamma": [],
    "guard": [
        ("p003", "p007", 1, 0.65, 0.5, 0.0, 0.2, 0.5),  # 0.3, clipped 0.45
        (
            "p003",
            "p001",
            None,
            0.6,
            0.5,
            0.0,
            0.2,
            0.5,
        ),  # of its cluster, but not among the nearest
    ],
}
# CI: alpha p000 (0.42 + 0.3) / 2 = 0.36, clipped (0.72 + 0.45) / 2 = 0.585
BY_CI = [
    "p001 alpha",
    "p001 beta",
    "p000 alpha",
    "p003 guard",
    "p005 beta",
    "p004 alpha",
]
# Isolation: alpha accepts 2 of the 3 others of p000 and p001, and both scored others of
# p004; the rest are alone. Among equals, the similarity of the nearest accepted
# paraphrase: 0.8, 0.6, 0.5, 0.4; then 0.9, 0.7.
BY_ISOLATION = [
    "p001 beta",
    "p003 guard",
    "p004 alpha",
    "p005 beta",
    "p000 alpha",
    "p001 alpha",
]
NEAREST = {
    "p001 beta": "p000",
    "p003 guard": "p001",
    "p004 alpha": "p005",
    "p005 beta": "p004",
    "p000 alpha": "p002",
    "p001 alpha": "p003",
}
WORDS = [[0, 2], [1], [2, 1], [0], [2], [1, 1], [0], [2, 0]]  # each prompt's own tokens


def make_world():
    """Eight prompts in two clusters, four systems, numbers chosen by hand."""
    corpus, _, traces, _, _ = worlds.world(LABELS["alpha"], ["c0"] * 4 + ["c1"] * 4)
    texts = [HOSTILE_PROMPT, FORMULA, LONG, *corpus["text"][3:]]
    corpus = corpus.assign(
        risk=RISKS,
        strategy=STRATEGIES,
        category=["deception"] * 4 + [HOSTILE_CATEGORY] * 4,
        text=texts,
    )
    traces = traces.assign(
        token_ids=[np.array([9, *own, 9]) for own in WORDS],
        user_start=1,
        user_end=[1 + len(own) for own in WORDS],
    )
    # Tokens 0 and 1 stand at right angles; 2 has cosine 0.6 with 0 and 0.8 with 1.
    # Token 9 is the template's.
    tokens = pd.DataFrame(
        {
            "token_id": [0, 1, 2, 9],
            "text": ["cat", " dog", HOSTILE_TOKEN, "user:"],
            "embedding": [
                np.array(v, np.float32) for v in ([1, 0], [0, 2], [0.6, 0.8], [1, 1])
            ],
        }
    )
    data = {}
    for name, labels in LABELS.items():
        labelled = corpus[["prompt_id"]].assign(
            label=labels, response=[f"{name} says {i}" for i in range(8)]
        )
        labelled.loc[labelled["prompt_id"] == "p002", "response"] = HOSTILE_ANSWER
        labelled.loc[labelled["prompt_id"] == "p004", "response"] = "-1+1"
        if name == "guard":
            labelled["response"] = None
        columns = [
            "centre_id",
            "neighbour_id",
            "rank",
            "similarity",
            "drift",
            "prob_shift",
            *PPL_INTERPRETATIONS.values(),
        ]
        pairs = pd.DataFrame(PAIRS[name], columns=columns).assign(
            centre_label="reject", neighbour_label="accept"
        )
        pairs["rank"] = pairs["rank"].astype("Int64")
        cluster = corpus.set_index("prompt_id")["cluster_id"]
        pairs["same_cluster"] = pairs["centre_id"].map(cluster) == pairs[
            "neighbour_id"
        ].map(cluster)
        system = System(
            name,
            corpus,
            labelled,
            ClusterBootstrap(corpus["cluster_id"]),
            Scoring(k=2),
            traces=traces,
            drifts=drift.DriftCache(tokens),
            pairs=pairs,
        )
        data[name] = replace(system, scores=confusion.score_prompts(system))
    titles = {
        "alpha": HOSTILE_TITLE,
        "beta": "beta",
        "gamma": "gamma",
        "guard": "guard",
    }
    return corpus, data, explorer.ExplorerHeader("tiny", "test", titles)


@pytest.fixture(scope="module")
def world():
    return make_world()


@pytest.fixture(scope="module")
def html(world):
    return explorer.render_explorer(*world)


@pytest.fixture
def show(browser, tmp_path):
    """Open a page; whatever it fetched, ran or complained about fails the test."""
    seen = []
    path = tmp_path / "page.html"
    tab = browser.new_page()
    tab.set_default_timeout(5000)
    tab.on("console", lambda message: seen.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
    tab.on(
        "dialog",
        lambda dialog: (seen.append(f"dialog: {dialog.message}"), dialog.dismiss()),
    )
    tab.on(
        "request", lambda request: seen.append(f"request: {urldefrag(request.url).url}")
    )

    def load(html, address=""):
        path.write_text(html, encoding="utf-8")
        tab.goto("about:blank")  # or a new address would only move the old page
        tab.goto(path.as_uri() + address)
        tab.wait_for_selector("#status:not(:empty)")
        assert seen.pop(0) == f"request: {path.as_uri()}"
        return tab

    yield load
    tab.evaluate("new Promise(requestAnimationFrame)")  # what is still to be drawn
    assert seen == [] and tab.evaluate("window.ran") is None
    tab.close()


@pytest.fixture
def tab(show, html):
    return show(html, ALL)


IDS = {HOSTILE_PROMPT: "p000", FORMULA: "p001", LONG: "p002"} | {
    f"text {i}": f"p00{i}" for i in range(3, 8)
}


def rows(tab):
    """The refusals on the page, in order, as "prompt system"."""
    texts = tab.locator("button.open").all_text_contents()
    systems = tab.locator(".list > li > .facts div:first-child dd").all_text_contents()
    return [
        f"{IDS[text]} {system.replace(HOSTILE_TITLE, 'alpha')}"
        for text, system in zip(texts, systems, strict=True)
    ]


def status(tab):
    return tab.locator("#status").text_content()


FIELDS = """all => Object.fromEntries(all
    .filter((one) => one.getClientRects().length)
    .map((one) => [one.name, [...one.options ?? []]
        .map((option) => option.dataset.label ?? option.textContent)]))"""
"""The filters that can be seen, each with its choices."""


def choose(tab, **filters):
    """Set filters; what is not named shows everything."""
    # A real click, which waits for two frames, is tried once, with the filters.
    tab.get_by_role("button", name="Reset filters").evaluate("node => node.click()")
    choices = tab.locator("#filters [name]").evaluate_all(FIELDS)
    wanted = {"system": "all systems", "outcome": "all"} | filters
    for name in [name for name in wanted if name in choices]:
        field, value = tab.locator(f"#filters [name={name}]"), wanted[name]
        if choices[name]:
            field.select_option(index=choices[name].index(value))
        elif value is True:
            field.check()
        else:
            field.fill(value)


def wait_for_view(tab, view):
    tab.wait_for_selector(
        f"#views a[data-view={view}][aria-current]"
    )  # the address changes first, then the page


def go(tab, view):
    tab.get_by_role("link", name=VIEWS[view], exact=True).click()
    wait_for_view(tab, view)


def opened(tab, row):
    """Open or close a refusal; return its list item."""
    item = tab.locator(".list > li").nth(rows(tab).index(row))
    item.locator("button.open").click()
    return item


def saved(tab, path):
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(path)
    return download.value.suggested_filename


def table(tab, path):
    saved(tab, path)
    return pd.read_csv(path, keep_default_na=False)


def test_filters_leave_exactly_the_refusals_that_fit(tab):
    assert rows(tab) == BY_ISOLATION
    for filters, expected in (
        ({"system": f"beta{FEW}"}, ["p001 beta", "p005 beta"]),
        ({"system": f"gamma{FEW}"}, []),
        ({"category": HOSTILE_CATEGORY}, ["p004 alpha", "p005 beta"]),
        ({"strategy": "lexical"}, ["p001 beta", "p005 beta", "p001 alpha"]),
        ({"cluster_id": "c0"}, ["p001 beta", "p003 guard", "p000 alpha", "p001 alpha"]),
        # the gate's 0.30 to 0.70 in thirds: p005 0.40 is low, p000 0.45 and p001 0.50
        # are middle, the rest is high
        ({"bin": "low, < 0.43"}, ["p005 beta"]),
        ({"bin": "high, ≥ 0.57"}, ["p003 guard", "p004 alpha"]),
        ({"same": True}, [row for row in BY_ISOLATION if row != "p003 guard"]),
        ({"q": "BETA says 5"}, ["p005 beta"]),
        ({"q": "<IMG src=x"}, ["p000 alpha"]),
        ({"q": "p004"}, ["p004 alpha"]),
        (
            {"system": f"beta{FEW}", "strategy": "lexical", "cluster_id": "c1"},
            ["p005 beta"],
        ),
        ({"q": "nowhere"}, []),
        ({}, BY_ISOLATION),
    ):
        choose(tab, **filters)
        assert rows(tab) == expected, filters
        every = {f"beta{FEW}": 2, f"gamma{FEW}": 0}.get(
            filters.get("system"), 6
        )  # of the system that is chosen
        assert (
            status(tab) == "Refusals:"
            f" {len(expected)}{f' of {every}' if len(expected) < every else ''}"
        )
    choose(tab, q="nowhere")
    tab.get_by_role("button", name="Reset filters").click()
    assert rows(tab) == [row for row in BY_ISOLATION if row.endswith("alpha")]
    assert not tab.get_by_text("Nothing fits these filters.").is_visible()


def requests(tab):
    """The requests of the first view, in order, by cluster."""
    return [
        head.split(",")[0]
        for head in tab.locator(".list > li > h3").all_text_contents()
    ]


def beside(tab):
    """The refused wordings of the first view with the answered ones beside them, by
    prompt.
    """
    return [
        [IDS[text] for text in pair.locator(".prompt").all_text_contents()]
        for pair in tab.locator(".list .sides").all()
    ]


@pytest.mark.slow
def test_the_page_opens_on_one_system_with_refused_wordings_beside_answered_ones(
    show, html
):
    tab = show(html)
    # alpha and beta decide both requests both ways; the first is shown, whose p004 is
    # the most isolated refusal (1)
    heading = (
        f"Requests refused in one wording and answered in another: {HOSTILE_TITLE}"
    )
    assert tab.locator("h2").text_content() == heading and status(tab) == "Requests: 2"
    assert requests(tab) == ["c1", "c0"]
    assert beside(tab) == [["p004", "p005"], ["p000", "p002"], ["p001", "p003"]]
    # p006 is not judged
    assert tab.locator(".list h3").all_text_contents() == [
        f"c1, {HOSTILE_CATEGORY}: refused in 1 of 3 wordings",
        "c0, deception: refused in 2 of 4 wordings",
    ]
    assert (
        tab.locator(".list h4 .decision").all_text_contents()
        == ["✗ refused", "✓ answered"] * 3
    )
    assert (
        tab.locator(".list .sides").nth(1).locator("u").all_text_contents()[-1] == LONG
    )  # words of one alone
    answer = tab.locator(".list blockquote").nth(1)
    assert not answer.is_visible()
    tab_to(tab, tab.locator(".list summary").nth(1))  # by the keyboard alone
    tab.keyboard.press("Enter")
    assert answer.is_visible() and answer.text_content() == "alpha says 5"
    tab_to(tab, tab.get_by_role("link", name="Neighbours, scores and tokens").nth(1))
    tab.keyboard.press("Enter")
    wait_for_view(tab, "refusals")
    assert (
        tab.locator("button.open[aria-expanded=true]").text_content() == HOSTILE_PROMPT
    )


@pytest.mark.slow
def test_requests_are_chosen_by_how_a_system_decides_their_wordings(show, tmp_path):
    corpus, data, about = make_world()
    data["beta"].scores["label"] = ["reject"] * 4 + list(
        data["beta"].scores["label"][4:]
    )
    data["beta"].labels["label"] = data["beta"].scores["label"].to_numpy()
    data["beta"] = replace(
        data["beta"], pairs=data["beta"].pairs.iloc[1:]
    )  # without that of p001 with p000, which is refused too now
    tab = show(explorer.render_explorer(corpus, data, about), "#system=beta")
    assert requests(tab) == ["c1"] and status(tab) == "Requests: 1 of 2"
    choose(tab, system=f"beta{FEW}", outcome="all refused")
    assert tab.locator(
        "h2"
    ).text_content() == "Requests refused in every wording: beta" and requests(tab) == [
        "c0"
    ]
    assert sorted(beside(tab)) == [["p000"], ["p001"], ["p002"], ["p003"]]
    assert tab.get_by_text("No wording of this request is answered.").count() == 4
    choose(tab, system=f"gamma{FEW}", outcome="all answered")
    assert (
        requests(tab) == ["c0", "c1"]
        and "answered in 4 of 4" in tab.locator(".list h3").first.text_content()
    )
    choose(tab)
    assert len(requests(tab)) == 8 and tab.locator("h2").text_content().endswith(
        "all systems"
    )
    choose(tab, system=f"beta{FEW}", outcome="decided both ways")
    found = table(tab, tmp_path / "wordings.csv").to_dict("records")
    assert [(row["refused_wording"], row["answered_wording"]) for row in found] == [
        ("text 5", "text 4")
    ]
    tab.get_by_role("link", name="What every system decides").click()
    wait_for_view(tab, "clusters")
    assert (
        cluster_names(tab) == ["c1"]
        and "beta refuses 1 of 4 wordings" in tab.locator(".cluster-head").inner_text()
    )


def choices(tab, name):
    """How much is found with each choice of a filter."""
    texts = tab.locator(f"#filters [name={name}] option").all_text_contents()
    return {
        text.rpartition(" (")[0].removesuffix(FEW): int(text.rpartition("(")[2][:-1])
        for text in texts
    }


@pytest.mark.slow
def test_the_counts_beside_choices_follow_the_other_filters(tab):
    assert choices(tab, "system") == {
        "all systems": 6,
        HOSTILE_TITLE: 3,
        "beta": 2,
        "gamma": 0,
        "guard": 1,
    }
    choose(tab, system=f"beta{FEW}", strategy="lexical")
    assert choices(tab, "system") == {
        "all systems": 3,
        HOSTILE_TITLE: 1,
        "beta": 2,
        "gamma": 0,
        "guard": 0,
    }
    assert choices(tab, "cluster_id") == {"all": 2, "c0": 1, "c1": 1}
    assert choices(tab, "strategy") == {
        "all": 2,
        "lexical": 2,
        "register": 0,
        "rewrite": 0,
        "seed": 0,
    }
    choose(tab, q="alpha says 0")
    assert choices(tab, "category") == {"all": 1, "deception": 1, HOSTILE_CATEGORY: 0}
    for view in ("wordings", "clusters"):
        go(tab, view)
        choose(tab)
        assert choices(tab, "cluster_id") == (
            {"all": 8, "c0": 4, "c1": 4}
            if view == "wordings"
            else {"all": 2, "c0": 1, "c1": 1}
        )
        # beside each choice stands what choosing it then shows
        for name in ("system", "outcome", "category", "strategy", "bin"):
            choose(tab)
            field = tab.locator(f"#filters [name={name}]")
            for at, (choice, count) in enumerate(choices(tab, name).items()):
                field.select_option(index=at)
                assert status(tab).split()[1] == str(count), (view, name, choice)
    go(tab, "review")
    choose(tab)
    assert choices(tab, "system") == {
        "all systems": 5,
        HOSTILE_TITLE: 3,
        "beta": 2,
        "gamma": 0,
        "guard": 1,
    }


@pytest.mark.slow
def test_on_a_phone_columns_have_numbers_and_a_key(tab):
    go(tab, "clusters")
    choose(tab)
    key = tab.locator(".key")
    assert not key.is_visible()
    tab.set_viewport_size({"width": 390, "height": 844})
    assert key.locator("li").all_inner_texts() == [
        HOSTILE_TITLE,
        "beta",
        "gamma",
        "guard",
    ]
    heads = tab.locator(".grid thead th:not(:first-child)")
    boxes = heads.evaluate_all(
        "all => all.map((one) => { const b = one.getBoundingClientRect(); return"
        " [b.left, b.right, b.height]; })"
    )
    assert all(
        right <= left for (_, right, _), (left, _, _) in itertools.pairwise(boxes)
    )  # nothing is printed over
    assert all(0 < height < 40 for *_, height in boxes)
    assert heads.all_text_contents() == [
        HOSTILE_TITLE,
        "beta",
        "gamma",
        "guard",
    ]  # for who listens


def test_other_orders_can_be_chosen(tab):
    choose(tab, order="CI, relative")
    assert rows(tab) == BY_CI
    choose(tab, order="surface risk")
    assert [row[:4] for row in rows(tab)] == [
        "p004",
        "p003",
        "p001",
        "p001",
        "p000",
        "p005",
    ]
    choose(tab)
    assert rows(tab) == BY_ISOLATION


def facts(node):
    names, values = (
        node.locator(f"> .facts {part}").all_text_contents() for part in ("dt", "dd")
    )
    return dict(zip(names, values, strict=True))


def test_an_opened_refusal_shows_neighbours_answers_signals_and_tokens(tab):
    item = opened(tab, "p000 alpha")
    assert item.locator("button.open").get_attribute("aria-expanded") == "true"
    assert facts(item)["Isolation"] == "0.67 (2 of 3 answered)"
    details = item.locator("article")
    assert details.locator("blockquote").first.text_content() == "alpha says 0"
    assert (
        "2 nearest answered prompts: mean score 0.360 (relative), 0.585 (clipped)"
        in details.inner_text()
    )

    near = details.locator("li.neighbour")
    assert near.count() == 2
    first, second = near.nth(0), near.nth(1)
    assert (
        "p002" in first.locator("h5").inner_text()
        and "p007" in second.locator("h5").inner_text()
    )
    assert [one.locator(".cluster").inner_text() for one in (first, second)] == [
        "same cluster",
        "another cluster",
    ]
    assert [one.locator(".decision").inner_text() for one in (first, second)] == [
        "✓ answered"
    ] * 2
    assert second.locator(".prompt").text_content() == "text 7"
    assert second.locator(".answer").text_content() == "alpha says 7"
    assert facts(first) == {
        "Similarity": "0.900",
        "Drift": "0.500",
        "ProbShift": "0.200",
        "PPL, relative": "0.400",
        "PPL, clipped": "1.000",
        "Score, relative": "0.420",
        "Score, clipped": "0.720",
    }
    assert list(facts(second).values())[-2:] == ["0.300", "0.450"]

    # p000 is cat, token 2; p002 is token 2, dog: cat is nearest to token 2 at 1 - 0.6,
    # token 2 to itself
    assert tiles(first) == [
        ["cat", HOSTILE_TOKEN, "0.40"],
        [HOSTILE_TOKEN, "=", "0.00"],
    ]
    edges = first.locator(".tokens li").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).borderBottomWidth)"
    )
    assert float(edges[0][:-2]) > float(edges[1][:-2])  # not by colour alone
    assert not second.locator(".tokens").is_visible()
    second.locator("summary").click()
    assert tiles(second) == [
        ["cat", "=", "0.00"],
        [HOSTILE_TOKEN, "=", "0.00"],
    ]  # the same tokens in another order

    assert decisions(details) == {
        f"p00{i}": [LABELS[name][i] for name in LABELS] for i in range(4)
    }
    item.locator("button.open").click()
    assert details.count() == 0


def test_same_cluster_only_leaves_neighbours_that_are_paraphrases(tab):
    choose(tab, same=True)
    opened(tab, "p000 alpha")
    near = tab.locator("li.neighbour")
    assert near.count() == 1 and "p002" in near.locator("h5").inner_text()
    tab.get_by_label("Same cluster only").uncheck()
    assert near.count() == 2


def tiles(near):
    return [
        [tile.locator(part).text_content() for part in ("b", "span", "small")]
        for tile in near.locator(".tokens li").all()
    ]


def decisions(node):
    """What the grid shows: each phrasing's decisions, by system."""
    marks = {"✓": "accept", "✗": "reject", "⊘": "blocked", "?": "unparsed"}
    return {
        line.locator("small").text_content().split(",")[0]: [
            marks[mark] for mark in line.locator("button").all_text_contents()
        ]
        for line in node.locator("tr.phrasing").all()
    }


def cluster_names(tab):
    return [
        head.split(",")[0]
        for head in tab.locator(".cluster-head h3").all_text_contents()
    ]


def test_the_cluster_view_shows_every_phrasing_and_every_systems_decision(tab):
    go(tab, "clusters")
    assert decisions(tab) == {
        f"p00{i}": [LABELS[name][i] for name in LABELS] for i in range(8)
    }
    assert cluster_names(tab) == ["c0", "c1"] and status(tab) == "Clusters: 2"
    assert (
        tab.locator(".cluster-head").first.inner_text()
        == "c0, deception: 4 of 16 decisions are refusals"
    )
    assert tab.locator(".grid thead th").all_text_contents() == [
        "Wording",
        HOSTILE_TITLE,
        "beta",
        "gamma",
        "guard",
    ]

    accepted = tab.get_by_role("button", name=f"answered: {HOSTILE_TITLE}, p003")
    accepted.click()
    tab.get_by_role("button", name="refused: guard, p003").click()
    said = tab.locator("tr.said")
    assert [line.locator("p").inner_text() for line in said.all()] == [
        f"✓ answered {HOSTILE_TITLE}",
        "✗ refused guard",
    ]
    assert said.locator("blockquote").all_text_contents() == [
        "alpha says 3",
        "(no answer)",
    ]
    accepted.click()
    assert said.count() == 1 and accepted.get_attribute("aria-expanded") == "false"


def test_clusters_are_filtered_by_their_refusals_which_are_marked(tab):
    go(tab, "clusters")
    for filters, names, marked in (
        ({"category": HOSTILE_CATEGORY}, ["c1"], []),
        (
            {"system": f"beta{FEW}"},
            ["c0", "c1"],
            ["refused: beta, p001", "refused: beta, p005"],
        ),
        ({"system": f"guard{FEW}"}, ["c0", "c1"], ["refused: guard, p003"]),
        (
            {"system": f"guard{FEW}", "outcome": "decided both ways"},
            ["c0"],
            ["refused: guard, p003"],
        ),
        ({"system": f"guard{FEW}", "outcome": "all answered"}, ["c1"], []),
        ({"outcome": "all refused"}, [], []),
        (
            {"strategy": "seed", "cluster_id": "c1"},
            ["c1"],
            [f"refused: {HOSTILE_TITLE}, p004"],
        ),
        ({"order": "similarity"}, ["c0", "c1"], []),
        ({"order": "surface risk"}, ["c1", "c0"], []),
    ):
        choose(tab, **filters)
        assert cluster_names(tab) == names, filters
        found = tab.locator("button.marked").evaluate_all(
            "all => all.map((one) => one.ariaLabel)"
        )
        assert found == marked, filters


def test_clusters_that_nobody_refuses_are_shown_too(show, world):
    corpus, data, about = world
    tab = show(explorer.render_explorer(corpus, {"gamma": data["gamma"]}, about), ALL)
    assert (
        rows(tab) == [] and tab.get_by_text("Nothing fits these filters.").is_visible()
    )
    assert tab.get_by_role("button", name="Save as CSV").is_disabled()
    go(tab, "clusters")
    assert cluster_names(tab) == ["c0", "c1"]
    choose(tab, system=f"gamma{FEW}", outcome="decided both ways")
    assert cluster_names(tab) == []
    go(tab, "compare")
    choose(tab, shown="all")
    assert status(tab) == "Prompts: 8"


def test_two_systems_stand_side_by_side(tab):
    go(tab, "compare")
    choose(tab, a=HOSTILE_TITLE, b="guard")

    def found():
        return [IDS[text] for text in tab.locator(".list h3").all_text_contents()]

    # refused by one: alpha's p004 (isolation 1) and guard's p003 (1), then alpha's p000
    # and p001 (2/3); p006 unparsed
    assert (
        found() == ["p003", "p004", "p000", "p001", "p006"]
        and status(tab) == "Prompts: 5 of 8"
    )
    item = tab.locator(".list > li").first
    assert item.locator("h4").all_text_contents() == [
        f"✓ answered {HOSTILE_TITLE}",
        "✗ refused guard",
    ]
    assert item.locator("blockquote").all_text_contents() == [
        "alpha says 3",
        "(no answer)",
    ]
    cells = tab.locator(".contingency tbody tr").all()
    assert [line.locator("th, td").all_text_contents() for line in cells] == [
        ["✓ answered", "3", "1"],
        ["✗ refused", "3", "0"],
        ["? not judged", "1", "0"],
    ]
    choose(tab, a="beta", b="gamma", cluster_id="c1", shown="all")
    assert found()[0] == "p005" and sorted(found()) == ["p004", "p005", "p006", "p007"]
    assert tab.locator(".contingency tbody td").all_text_contents() == ["3", "1"]


def picture(tab):
    """What a reader sees of the results, and what the filters say."""
    fields = tab.locator("#filters").evaluate(
        "form => JSON.stringify([...new FormData(form)])"
    )
    return (
        tab.locator("h2").text_content(),
        status(tab),
        json.loads(fields),
        tab.locator("#shown").inner_text(),
    )


def test_a_link_restores_view_filters_and_what_was_opened(show, html):
    tab = show(html, ALL)
    choose(
        tab,
        system=HOSTILE_TITLE + FEW,
        strategy="seed",
        same=True,
        order="CI, relative",
        q="p00",
    )
    opened(tab, "p000 alpha").get_by_role(
        "button", name="answered: guard, p002"
    ).click()
    refusals, first = picture(tab), tab.url
    go(tab, "compare")
    choose(tab, a="guard", b="beta", shown="all")
    compared, second = picture(tab), tab.url
    go(tab, "review")
    choose(tab, draw="7", pairs="4", reader="A & B")
    tab.get_by_role("button", name="Next").click()
    tab.get_by_role("button", name="Next").click()
    reviewed, third = picture(tab), tab.url
    assert tab.locator("#pager span").text_content() == "Pair 3 of 4"
    tab.go_back()
    wait_for_view(tab, "compare")
    assert picture(tab) == compared and tab.url == second
    for address, seen in ((first, refusals), (second, compared), (third, reviewed)):
        tab = show(html, f"#{urldefrag(address).fragment}")
        assert picture(tab) == seen and tab.url == address


def test_a_link_to_one_refusal_shows_it_alone_and_opened(show, html):
    tab = show(html, ALL)
    address = (
        opened(tab, "p001 alpha")
        .get_by_role("link", name="Link to this refusal")
        .get_attribute("href")
    )
    tab = show(html, address)
    assert rows(tab) == ["p000 alpha", "p001 alpha"]  # of that system and cluster
    assert tab.locator("button.open").evaluate_all(
        "all => all.map((one) => one.ariaExpanded)"
    ) == ["false", "true"]


def test_a_link_from_another_page_is_taken_as_far_as_it_goes(show, html):
    tab = show(
        html,
        "#view=constructor&system=nobody&cluster_id=c1&open=nobody~p000&page=99&x=1",
    )
    assert (
        tab.locator("h2").text_content()
        == f"Requests refused in one wording and answered in another: {HOSTILE_TITLE}"
    )
    assert requests(tab) == ["c1"]
    assert "system" not in parse_qs(urldefrag(tab.url).fragment)
    tab = show(html, "#view=compare&a=nobody&b=beta")
    assert tab.locator("[name=a]").input_value() == "alpha"


def test_what_is_shown_is_saved_with_formulas_as_text(tab, tmp_path):
    choose(tab, strategy="lexical")
    found = table(tab, tmp_path / "refusals.csv")
    assert found["system"].tolist() == ["beta", "beta", "alpha"]
    assert found["prompt"].tolist() == [f"'{FORMULA}", "text 5", f"'{FORMULA}"]
    assert found["isolation"].tolist() == [1, 1, 0.6667]
    assert found["nearest_accepted_paraphrase"].tolist() == [
        HOSTILE_PROMPT,
        "text 4",
        "text 3",
    ]
    choose(tab, category=HOSTILE_CATEGORY)
    assert table(tab, tmp_path / "refusals.csv")["answer"].tolist() == [
        "'-1+1",
        "beta says 5",
    ]
    go(tab, "clusters")
    found = table(tab, tmp_path / "clusters.csv").set_index("prompt_id")
    assert found[list(LABELS)].T.to_numpy().tolist() == [
        labels[4:] for labels in LABELS.values()
    ]
    go(tab, "compare")
    choose(tab, a="beta", b="gamma")
    assert saved(tab, tmp_path / "compare.csv") == "paraguard-compare.csv"
    found = pd.read_csv(tmp_path / "compare.csv").to_dict("records")
    assert [(row["prompt"], row["decision_1"], row["answer_2"]) for row in found] == [
        (f"'{FORMULA}", "reject", "gamma says 1"),
        ("text 5", "reject", "gamma says 5"),
    ]


def drawn(tab):
    """The pairs of a review, in order, as the page shows them one by one."""
    found = []
    for number in range(
        1, int(tab.locator("#pager span").text_content().split()[-1]) + 1
    ):
        assert tab.locator("#pager span").text_content().startswith(f"Pair {number} of")
        accepted, refused = (
            IDS[text] for text in tab.locator(".review .prompt").all_text_contents()
        )
        said = tab.locator(".review blockquote").text_content()
        systems = {"(no answer)": "guard", "-1+1": "alpha"}
        found.append((f"{refused} {systems.get(said, said.split()[0])}", accepted))
        if number < 5:
            tab.get_by_role("button", name="Next").click()
    return found


def test_a_review_draws_a_refusal_and_its_nearest_accepted_paraphrase_by_seed(
    show, html
):
    draws = []
    for seed in (1, 1, 2, 3, 4):
        draws.append(drawn(show(html, f"#view=review&system=&draw={seed}&page=1")))
    for draw in draws:
        assert all(NEAREST[refused] == accepted for refused, accepted in draw)
        # p001 is refused by two, and judged once
        assert sorted(refused[:4] for refused, _ in draw) == [
            "p000",
            "p001",
            "p003",
            "p004",
            "p005",
        ]
    assert draws[0] == draws[1] and len(set(map(tuple, draws))) > 2
    assert {row for draw in draws for row, _ in draw} == set(BY_ISOLATION)
    assert (
        drawn(show(html, "#view=review&system=&draw=1&same=yes&page=1")) == draws[0]
    )  # a filter that a review does not show
    # filters leave out, and change no order
    tab = show(html, "#view=review&system=&draw=2&cluster_id=c1&page=1")
    assert status(tab) == "Pairs: 2, judged: 0"
    assert [text[:4] for text, _ in draws[2] if text[:4] in ("p004", "p005")] == [
        IDS[row["paraphrase"]] for row in reviewed(tab)
    ]


def reviewed(tab):
    """The rows of the sheet, as the reader of sheets has them."""
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save as CSV").click()
    return fidelity.read_sheet(download.value.path()).to_dict("records")


def test_verdicts_are_kept_and_saved_as_a_sheet(show, html, tmp_path):
    tab = show(html, "#view=review&system=alpha&reader=Ann%20B.")
    assert status(tab) == "Pairs: 3, judged: 0"
    order = [row["prompt_id"] for row in reviewed(tab)]
    tab.get_by_role("button", name="Same intent").click()
    assert status(tab) == "Pairs: 3, judged: 0"  # the second question is open
    tab.get_by_role("button", name="No", exact=False).first.click()
    tab.get_by_label("Comment").fill("=a remark")
    assert status(tab) == "Pairs: 3, judged: 1"
    tab.get_by_role("button", name="Next").click()
    assert tab.locator("[aria-pressed=true]").count() == 0
    for key in (
        "2",
        "3",
        "2",
        "6",
        "ArrowRight",
        "1",
        "4",
        "4",
    ):  # another key instead, and a key again to take it back
        tab.keyboard.press(key)
    tab = show(html, "#view=review&system=alpha&reader=Ann%20B.")
    assert (
        tab.locator("#pager span").text_content() == "Pair 3 of 3"
    )  # the first that is not judged
    assert status(tab) == "Pairs: 3, judged: 2"
    assert saved(tab, tmp_path / "sheet.csv") == "paraguard-review-Ann_B_.csv"
    sheet = fidelity.read_sheet(tmp_path / "sheet.csv")
    assert sheet["prompt_id"].tolist() == order
    assert sheet["mark"].tolist() == ["same intent", "shifted", "same intent"]
    assert sheet["refusal"].tolist() == ["no", "unsure", ""]
    assert sheet["comment"].tolist() == ["'=a remark", "", ""]
    assert set(sheet["system"]) == {"alpha"} and set(sheet["answer"]) == {
        "alpha says 0",
        "alpha says 1",
        "'-1+1",
    }
    assert "1 of 2 marked answers no refusal" in fidelity.describe_sheets([sheet])[1]
    for address in (
        "#view=review&system=alpha&reader=Ben",
        "#view=review&system=guard&reader=Ann%20B.",
    ):
        assert status(show(html, address)).endswith("judged: 0")


def test_a_guards_decision_has_no_second_question(show, html):
    tab = show(html, "#view=review&system=guard")
    assert tab.locator("fieldset").count() == 1
    tab.locator("#results").click(position={"x": 5, "y": 5})
    tab.keyboard.press("1")
    assert status(tab) == "Pairs: 1, judged: 1"


def test_a_verdict_is_not_carried_over_to_another_answer(show, html):
    corpus, data, about = make_world()
    address = "#view=review&system=guard"
    tab = show(html, address)
    tab.get_by_role("button", name="Shifted").click()
    again = explorer.render_explorer(corpus, data, about._replace(store="another"))
    assert status(show(again, address)) == "Pairs: 1, judged: 1"
    data["guard"].labels["response"] = "I would rather not."
    assert (
        status(show(explorer.render_explorer(corpus, data, about), address))
        == "Pairs: 1, judged: 0"
    )


def test_a_browser_that_keeps_nothing_is_told_of_and_verdicts_can_be_saved(show, html):
    tab = show(html, "#view=review&system=guard")
    assert not tab.get_by_role("alert").is_visible()
    tab.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('full') } }"
    )
    tab.get_by_role("button", name="Shifted").click()
    assert (
        tab.get_by_role("alert").is_visible() and status(tab) == "Pairs: 1, judged: 1"
    )
    assert [row["mark"] for row in reviewed(tab)] == ["shifted"]


def tab_to(tab, node):
    """Press the tab key until a node has the focus."""
    for _ in range(80):
        if node.evaluate("node => node === document.activeElement"):
            return
        tab.keyboard.press("Tab")
    raise AssertionError(f"the tab key does not reach {node}")


def test_the_keyboard_alone_does_everything(show, html):
    tab = show(html, ALL)
    tab_to(tab, tab.locator("[name=strategy]"))
    tab.keyboard.type("lex")
    assert rows(tab) == ["p001 beta", "p005 beta", "p001 alpha"]
    tab_to(tab, tab.locator("button.open").nth(2))
    tab.keyboard.press("Enter")
    tab_to(tab, tab.locator("article summary").nth(1))
    tab.keyboard.press("Space")
    assert tab.locator(".tokens").nth(1).is_visible()
    tab_to(tab, tab.get_by_role("button", name="answered: gamma, p000"))
    tab.keyboard.press("Space")
    assert tab.locator("tr.said blockquote").text_content() == "gamma says 0"
    tab.keyboard.press("Enter")
    assert tab.locator("tr.said").count() == 0

    tab = show(html)
    tab_to(tab, tab.get_by_role("link", name="Review"))
    tab.keyboard.press("Enter")
    first = tab.locator(".review .prompt").last.text_content()
    tab_to(tab, tab.get_by_role("button", name="Next"))
    tab.keyboard.press("Enter")
    assert tab.locator("h2").evaluate("node => node === document.activeElement")
    assert tab.locator(".review .prompt").last.text_content() != first
    tab.keyboard.press("ArrowLeft")
    assert tab.locator(".review .prompt").last.text_content() == first
    tab_to(tab, tab.get_by_label("Comment"))
    tab.keyboard.type("1")  # a comment, no verdict
    assert tab.locator("[aria-pressed=true]").count() == 0
    with tab.expect_download():
        tab_to(tab, tab.get_by_role("button", name="Save as CSV"))
        tab.keyboard.press("Enter")


def unfolded(show, html, view):
    """A view with everything open that can be opened."""
    tab = show(
        html,
        f"#view={view}&system=&outcome={'&shown=all' if view == 'compare' else ''}",
    )
    folded = tab.locator("[aria-expanded=false]")
    while folded.count():
        folded.first.evaluate("node => node.click()")
    for summary in tab.locator("summary").all():
        summary.evaluate("node => { node.parentNode.open = true }")
    return tab


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(one, marks=pytest.mark.weekly if one in LONG_VIEWS else ())
        for one in VIEWS
    ],
)
@pytest.mark.parametrize(
    "looks",
    [LOOKS[0], pytest.param(LOOKS[1], marks=pytest.mark.weekly)],
    ids=["usual", "other"],
)
def test_every_view_is_accessible_in_light_and_dark_wide_and_narrow(
    show, html, view, looks
):
    tab = unfolded(show, html, view)
    assert tab.get_by_role("main").count() == 1
    for scheme, width in looks:
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 844})
        found = Axe().run(tab).response["violations"]
        about = [(one["id"], one["nodes"][0]["html"]) for one in found]
        assert about == [], (scheme, width)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    levels = [
        int(name[1])
        for name in tab.locator(":is(h1, h2, h3, h4, h5)").evaluate_all(
            "all => all.map((h) => h.tagName)"
        )
    ]
    assert levels[:2] == [1, 2] and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_page_follows_the_systems_colours(tab):
    def brightness(scheme):
        tab.emulate_media(color_scheme=scheme)
        return [
            tab.evaluate(
                f"eval(getComputedStyle(document.body).{name}.match(/\\d+/g).join('+'))"
            )
            for name in ("backgroundColor", "color")
        ]

    ground, ink = brightness("light")
    assert ground > 700 > 200 > ink
    ground, ink = brightness("dark")
    assert ground < 200 < 600 < ink


def test_markup_in_texts_is_text(show, html):
    for view in VIEWS:
        tab = unfolded(show, html, view)
        if view == "refusals":
            assert HOSTILE_PROMPT in tab.locator("button.open").all_text_contents()
            assert HOSTILE_ANSWER in tab.locator(".answer").all_text_contents()
            assert HOSTILE_TOKEN in tab.locator(".tokens b").all_text_contents()
            assert HOSTILE_TITLE in tab.locator(".facts dd").all_text_contents()
        assert (
            HOSTILE_PROMPT in tab.locator("#shown").text_content() or view == "review"
        )
        assert tab.locator("img, iframe, svg, main b[onmouseover]").count() == 0


def test_the_policy_lets_no_foreign_script_run(browser, html, tmp_path):
    path = tmp_path / "page.html"
    foreign = (
        "<script>window.ran = 1</script><img src='https://example.org/x'"
        " onerror='window.ran = 2'></body>"
    )
    path.write_text(html.replace("</body>", foreign), encoding="utf-8")
    tab = browser.new_page()
    refused = []
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(path.as_uri())
    tab.wait_for_selector("#status:not(:empty)")
    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in refused)
    tab.close()


def test_tokens_are_aligned_as_drift_does(world):
    corpus, data, about = world
    own = data["alpha"]
    content = explorer.collect_explorer_data(corpus, data, about)
    assert len(content["rejections"]) == 6
    rows, table = (
        drift.find_token_rows(own.traces, own.drifts.tokens),
        normalize_rows(np.stack(own.drifts.tokens["embedding"].to_numpy())),
    )
    for rejection in content["rejections"]:
        for at, *_, nearest, hundredths in rejection["near"]:
            distances = 1 - table[rows[rejection["prompt"]]] @ table[rows[at]].T
            assert distances.round(12).argmin(axis=1).tolist() == nearest
            assert (100 * distances.min(axis=1)).round().astype(
                int
            ).tolist() == hundredths


class Changed(stores.CorpusFiles):
    """The recorded store, with another pairs file."""

    def read(self, kind, *names):
        frame = super().read(kind, *names)
        return frame.assign(drift=frame["drift"] / 2) if kind == "pairs" else frame


class Relabelled(stores.CorpusFiles):
    """The recorded store, in which everything is accepted."""

    def read(self, kind, *names):
        frame = super().read(kind, *names)
        return frame.assign(label="accept") if kind == "labels" else frame


@pytest.mark.slow
def test_scores_of_other_pairs_are_refused():
    name = registry.published_systems("chat").index[0]
    ((found, own),) = pipeline.read_systems(FILES, [name]).items()
    assert found == name and own.scoring == Scoring() and own.labeller == "combined"
    with pytest.raises(DataError, match="scores of other labels or pairs"):
        pipeline.read_systems(
            Changed(stores.Store("recorded"), "paraguard_mini"), [name]
        )


@pytest.mark.slow
def test_systems_scored_in_two_ways_are_refused(monkeypatch):
    first, second = registry.published_systems("chat").index[:2]

    def changed(path):
        meta = stores.read_meta(path)
        return (
            meta | {"parameters": meta["parameters"] | {"k": 4}}
            if path.stem == second
            else meta
        )

    monkeypatch.setattr(pipeline, "read_meta", changed)
    with pytest.raises(
        DataError,
        match=f"{second}.csv: scored with other weights, k or labeller than {first};",
    ):
        pipeline.read_systems(FILES, [first, second])


@pytest.mark.parametrize("store", ["nowhere", "../up"])
def test_a_users_error_is_one_line(store, command, results):
    error = command("explorer", "--store", store).error
    assert error and "\n" not in error
    assert not (results / "explorer.html").exists()


@pytest.mark.slow
def test_guards_stand_beside_the_system_that_lent_its_trace(recorded_corpus):
    names = list(registry.published_systems("chat").index[:2])
    data = pipeline.read_systems(FILES, names)
    guards = guarded.read_guards(FILES, data.values())
    assert list(guards) == recorded_systems("guard")
    for name, own in guards.items():
        assert (
            own.traces is data[names[1]].traces
        )  # the first under the safety system prompt
        assert own.labels["prompt_id"].tolist() == recorded_corpus["prompt_id"].tolist()
        assert (own.scores["label"] == "reject").sum() == (
            own.labels["label"] == "reject"
        ).sum(), name
    assert any((own.labels["label"] == "reject").any() for own in guards.values())
    others = {names[0]: data[names[0]]}
    assert guarded.read_guards(FILES, others.values()) == {}
    with pytest.raises(
        DataError,
        match=(
            "scores of another corpus or other decisions; run 05_guard_comparison again"
        ),
    ):
        relabelled = Relabelled(stores.Store("recorded"), "paraguard_mini")
        guarded.read_guards(relabelled, data.values())


@pytest.mark.slow
@pytest.mark.weekly
def test_the_recorded_refusals_are_all_there(command, results, show):
    path = paths.RESULTS / "explorer.html"
    assert paths.display_path(path) in command("explorer").printed
    assert path.stat().st_size < 6e6
    names = recorded_systems("chat") + recorded_systems("guard")
    labels = pd.concat(
        [RECORDED.read("labels", "paraguard_mini", name) for name in names]
    )
    n = int((labels["label"] == "reject").sum())
    page = path.read_text(encoding="utf-8")
    tab = show(page)
    # the model that decides most requests both ways
    cluster, models = (
        RECORDED.read("corpus", "paraguard_mini")["cluster_id"],
        registry.published_systems("chat").index,
    )
    both = {}
    for name in models:
        label = RECORDED.read("labels", "paraguard_mini", name)["label"]
        refused, answered = (
            (label == one).groupby(cluster).any() for one in ("reject", "accept")
        )
        both[registry.display_titles([name])[0]] = int((refused & answered).sum())
    busiest = max(both, key=both.get)
    assert status(tab) == f"Requests: {both[busiest]} of 200"
    assert tab.locator("h2").text_content().endswith(f"answered in another: {busiest}")
    assert tab.locator(".list > li").count() == 10 and tab.locator(".none").count() == 0
    tab = show(page, ALL)
    assert status(tab) == f"Refusals: {n:,}"
    tab.locator("button.open").first.click()
    assert (
        tab.locator("li.neighbour").count() == 5
        and tab.locator(".tokens li").count() > 25
    )
    assert tab.locator("tr.phrasing").count() == 6 and tab.locator(
        ".grid button"
    ).count() == 6 * len(names)
    tab.get_by_role("button", name="Next").click()
    assert tab.locator("#pager span").text_content() == f"Page 2 of {-(-n // 25)}"
    go(tab, "review")
    assert status(tab) == "Pairs: 50, judged: 0" and len(reviewed(tab)) == 50
