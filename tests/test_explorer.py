"""The page on which rejections are explored, in a real browser."""

import shutil

import numpy as np
import pandas as pd
import pytest
import worlds
from playwright.sync_api import sync_playwright

from paraguard_utils import paths, registry, stores
from paraguard_utils.errors import DataError
from paraguard_utils.report import explorer
from paraguard_utils.scoring import confusion, pipeline, signals
from paraguard_utils.settings import PAPER_WEIGHTS

RECORDED = stores.Store("recorded")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

HOSTILE_PROMPT = """<img src=x onerror="window.ran='prompt'"> & </script><script>window.ran='script'</script>"""
HOSTILE_ANSWER = "<!--<script>window.ran='answer'</script> &amp; \u2028<iframe src='javascript:alert(1)'>"
HOSTILE_TOKEN = "<svg/onload=window.ran='token'>"
HOSTILE_TITLE = "Alpha <b onmouseover=alert(1)>"
HOSTILE_CATEGORY = """hate"><img src=x onerror=alert(2)>"""

RISKS = [0.45, 0.50, 0.55, 0.60, 0.65, 0.40, 0.59, 0.30]
STRATEGIES = ["seed", "lexical", "register", "rewrite"] * 2
# Two targets with rejections, one without.
LABELS = {
    "alpha": ["reject", "reject", "accept", "accept", "reject", "accept", "unparsed", "accept"],
    "beta": ["accept", "reject", "accept", "accept", "accept", "reject", "accept", "accept"],
    "gamma": ["accept"] * 8,
}
# centre, neighbour, rank, similarity, drift, prob_shift, ppl_relative, ppl_clipped
PAIRS = {
    "alpha": [
        # score 0.4 * 0.5 + 0.1 * 0.2 + 0.5 * 0.4 = 0.42, clipped 0.2 + 0.02 + 0.5 = 0.72
        ("p000", "p002", 1, 0.9, 0.5, 0.2, 0.4, 1.0),
        # 0.4 * 0.25 + 0.1 * 1 + 0.5 * 0.2 = 0.3, clipped 0.1 + 0.1 + 0.25 = 0.45
        ("p000", "p007", 2, 0.3, 0.25, 1.0, 0.2, 0.5),
        ("p001", "p003", 1, 0.7, 1.0, 1.0, 1.0, 0.0),  # 1.0, clipped 0.5
        ("p004", "p005", 1, 0.5, 0.0, 0.0, 0.2, 1.0),  # 0.1, clipped 0.5
    ],
    "beta": [
        ("p001", "p000", 1, 0.8, 0.5, 0.0, 0.6, 0.6),  # 0.5, both
        ("p005", "p004", 1, 0.4, 0.5, 0.0, 0.0, 0.1),  # 0.2, clipped 0.25
    ],
    "gamma": [],
}
# CI: alpha p000 (0.42 + 0.3) / 2 = 0.36, clipped (0.72 + 0.45) / 2 = 0.585
BY_CI = ["p001 alpha", "p001 beta", "p000 alpha", "p005 beta", "p004 alpha"]
WORDS = [[0, 2], [1], [2, 1], [0], [2], [1, 1], [0], [2, 0]]  # each prompt's own tokens


@pytest.fixture(scope="module")
def world():
    """Eight prompts in two clusters, three targets, numbers chosen by hand."""
    corpus, _, traces, _, _ = worlds.world(LABELS["alpha"], ["c0"] * 4 + ["c1"] * 4)
    texts = [HOSTILE_PROMPT, *corpus["text"][1:]]
    corpus = corpus.assign(
        risk=RISKS, strategy=STRATEGIES, category=["deception"] * 4 + [HOSTILE_CATEGORY] * 4, text=texts
    )
    traces = traces.assign(
        token_ids=[np.array([9, *own, 9]) for own in WORDS], user_start=1, user_end=[1 + len(own) for own in WORDS]
    )
    # Tokens 0 and 1 stand at right angles; 2 has cosine 0.6 with 0 and 0.8 with 1. Token 9 is the template's.
    tokens = pd.DataFrame(
        {
            "token_id": [0, 1, 2, 9],
            "text": ["cat", " dog", HOSTILE_TOKEN, "user:"],
            "embedding": [np.array(v, np.float32) for v in ([1, 0], [0, 2], [0.6, 0.8], [1, 1])],
        }
    )
    data = {}
    for name, labels in LABELS.items():
        labelled = corpus[["prompt_id"]].assign(label=labels, response=[f"{name} says {i}" for i in range(8)])
        labelled.loc[labelled["prompt_id"] == "p002", "response"] = HOSTILE_ANSWER
        columns = ["centre_id", "neighbour_id", "rank", "similarity", "drift", "prob_shift", *signals.READINGS.values()]
        pairs = pd.DataFrame(PAIRS[name], columns=columns).assign(centre_label="reject", neighbour_label="accept")
        pairs["rank"] = pairs["rank"].astype("Int64")
        cluster = corpus.set_index("prompt_id")["cluster_id"]
        pairs["same_cluster"] = pairs["centre_id"].map(cluster) == pairs["neighbour_id"].map(cluster)
        scores = confusion.prompt_scores(corpus, labelled, pairs, k=2)
        data[name] = pipeline.ScoredTarget(
            labelled, pairs, scores, traces, tokens, signals.Drifts(traces, tokens), PAPER_WEIGHTS, 2, "combined"
        )
    titles = {"alpha": HOSTILE_TITLE, "beta": "beta", "gamma": "gamma"}
    return corpus, data, explorer.About("tiny", "test", titles)


@pytest.fixture(scope="module")
def html(world):
    return explorer.page(*world)


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome is installed: the page is not tried in a browser")
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page; whatever it fetched, ran or complained about fails the test."""
    seen = []
    tab = browser.new_page()
    tab.set_default_timeout(5000)
    tab.on("console", lambda message: seen.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: seen.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda request: seen.append(f"request: {request.url}"))

    def load(html):
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        tab.goto(path.as_uri())
        tab.wait_for_selector(".dt-info")
        assert seen.pop(0) == f"request: {path.as_uri()}"
        return tab

    yield load
    tab.wait_for_timeout(50)
    assert seen == [] and tab.evaluate("window.ran") is None
    tab.close()


@pytest.fixture
def tab(show, html):
    return show(html)


def rows(tab):
    """The visible rejections, in order, as "prompt target"."""
    labels = tab.locator("button.open").evaluate_all("all => all.map((one) => one.ariaLabel)")
    return [label.removeprefix("Details of ").replace(HOSTILE_TITLE, "alpha").replace(",", "") for label in labels]


def settled(tab, read, expected):
    """What `read` returns once it is what was expected, or after two seconds: the table is drawn after the event."""
    for _ in range(40):
        if read() == expected:
            break
        tab.wait_for_timeout(50)
    return read()


def choose(tab, **filters):
    tab.get_by_role("button", name="Show all").click()
    for name, value in filters.items():
        field = tab.locator(f"#filters [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(label=value)
        else:
            field.fill(value)


def test_filters_leave_exactly_the_rows_that_fit(tab):
    assert rows(tab) == BY_CI
    for filters, expected in (
        ({"target": "beta (2)"}, ["p001 beta", "p005 beta"]),
        ({"target": "gamma (0)"}, []),
        ({"category": f"{HOSTILE_CATEGORY} (2)"}, ["p005 beta", "p004 alpha"]),
        ({"strategy": "lexical (3)"}, ["p001 alpha", "p001 beta", "p005 beta"]),
        # the gate's 0.30 to 0.70 in thirds: p005 0.40 is low, p000 0.45 and p001 0.50 are middle, p004 0.65 is high
        ({"bin": "low, < 0.43 (1)"}, ["p005 beta"]),
        ({"bin": "middle, 0.43 to < 0.57 (3)"}, ["p001 alpha", "p001 beta", "p000 alpha"]),
        ({"bin": "high, ≥ 0.57 (1)"}, ["p004 alpha"]),
        ({"least": "0.45", "most": "0.5"}, ["p001 alpha", "p001 beta", "p000 alpha"]),
        ({"similar": "0.6"}, ["p001 alpha", "p001 beta", "p000 alpha"]),  # p000: (0.9 + 0.3) / 2
        ({"target": "beta (2)", "strategy": "lexical (3)", "least": "0.45"}, ["p001 beta"]),
        ({}, BY_CI),
    ):
        choose(tab, **filters)
        assert settled(tab, lambda: rows(tab), expected) == expected, filters
        of = "" if len(expected) == 5 else " of 5"
        assert tab.locator(".dt-info").inner_text() == f"Rejections: {len(expected)}{of}"


def test_search_looks_into_prompts_answers_and_ids(tab):
    field = tab.get_by_label("Search prompts and answers:")
    for words, expected in (
        ("beta says 5", ["p005 beta"]),
        ("<img window.ran='prompt'", ["p000 alpha"]),
        ("p004", ["p004 alpha"]),
        ("nowhere", []),
    ):
        field.fill(words)
        assert settled(tab, lambda: rows(tab), expected) == expected, words
    choose(tab)
    assert settled(tab, lambda: rows(tab), BY_CI) == BY_CI


def test_columns_sort(tab):
    def column(number):
        return tab.locator(f"#rejections > tbody > tr > td:nth-child({number})").all_inner_texts()

    assert column(8) == ["1.000", "0.500", "0.360", "0.200", "0.100"]
    for number, expected in (
        (8, ["0.100", "0.200", "0.360", "0.500", "1.000"]),
        (9, ["0.585", "0.500", "0.500", "0.500", "0.250"]),
        (9, ["0.250", "0.500", "0.500", "0.500", "0.585"]),
        (6, ["0.650", "0.500", "0.500", "0.450", "0.400"]),
        (5, ["lexical", "lexical", "lexical", "seed", "seed"]),
        (8, ["1.000", "0.500", "0.360", "0.200", "0.100"]),
    ):
        tab.locator("#rejections thead th").nth(number - 1).click()
        assert settled(tab, lambda number=number: column(number), expected) == expected
    assert rows(tab) == BY_CI


def test_an_opened_rejection_shows_neighbours_answers_signals_and_tokens(tab):
    button = tab.get_by_role("button", name=f"Details of p000, {HOSTILE_TITLE}")
    button.focus()
    tab.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    details = tab.locator("article")
    assert details.locator("dd").all_text_contents()[1] == "alpha says 0"
    assert "2 nearest accepted prompts: mean score 0.360 (relative), 0.585 (clipped)" in details.inner_text()

    near = details.locator("li.neighbour")
    assert near.count() == 2
    first, second = near.nth(0), near.nth(1)
    assert "p002" in first.locator("h4").inner_text() and "p007" in second.locator("h4").inner_text()
    assert [one.locator(".cluster").inner_text() for one in (first, second)] == ["same cluster", "another cluster"]
    assert [one.locator(".decision").inner_text() for one in (first, second)] == ["✓ accept"] * 2
    assert second.locator("dd.prompt").text_content() == "text 7"
    assert second.locator("dd.answer").text_content() == "alpha says 7"
    assert dict(zip(first.locator("th").all_inner_texts(), first.locator("td").all_inner_texts(), strict=True)) == {
        "Similarity": "0.900",
        "Drift": "0.500",
        "ProbShift": "0.200",
        "PPL, relative": "0.400",
        "PPL, clipped": "1.000",
        "Score, relative": "0.420",
        "Score, clipped": "0.720",
    }
    assert second.locator("td").all_inner_texts()[-2:] == ["0.300", "0.450"]

    # p000 is cat, token 2; p002 is token 2, dog: cat is nearest to token 2 at 1 - 0.6, token 2 to itself
    assert tiles(first) == [["cat", HOSTILE_TOKEN, "0.40"], [HOSTILE_TOKEN, "=", "0.00"]]
    edges = first.locator(".tokens li").evaluate_all("all => all.map((one) => getComputedStyle(one).borderBottomWidth)")
    assert float(edges[0][:-2]) > float(edges[1][:-2])  # not by colour alone
    assert not second.locator(".tokens").is_visible()
    second.locator("summary").click()
    assert tiles(second) == [["cat", "=", "0.00"], [HOSTILE_TOKEN, "=", "0.00"]]  # the same tokens in another order

    assert "Other members of cluster c0: 2 of 3 accepted" in details.inner_text()
    members = [line.locator("td").all_inner_texts() for line in details.locator(".members tbody tr").all()]
    assert [line[:4] for line in members] == [
        ["✗ reject", "p001", "lexical", "0.500"],
        ["✓ accept", "p002", "register", "0.550"],
        ["✓ accept", "p003", "rewrite", "0.600"],
    ]
    details.locator("h3").first.click()
    assert details.count() == 1  # a click inside leaves it open
    button.click()
    assert details.count() == 0 and button.get_attribute("aria-expanded") == "false"


def tiles(near):
    return [
        [tile.locator(part).text_content() for part in ("b", "span", "small")]
        for tile in near.locator(".tokens li").all()
    ]


def test_markup_in_texts_is_text(tab):
    assert HOSTILE_PROMPT in tab.locator("td.text").all_text_contents()
    for button in tab.locator("button.open").all():
        button.click()
    assert HOSTILE_ANSWER in tab.locator("dd.answer").all_text_contents()
    assert HOSTILE_PROMPT in tab.locator("dd.prompt").all_text_contents()
    assert HOSTILE_TOKEN in tab.locator(".tokens b").all_text_contents()
    assert HOSTILE_TITLE in tab.locator("header").text_content()
    assert tab.locator("img, iframe, svg, header u").count() == 0


def test_the_policy_lets_no_foreign_script_run(browser, html, tmp_path):
    path = tmp_path / "page.html"
    foreign = "<script>window.ran = 1</script><img src='https://example.org/x' onerror='window.ran = 2'></body>"
    path.write_text(html.replace("</body>", foreign), encoding="utf-8")
    tab = browser.new_page()
    refused = []
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(path.as_uri())
    tab.wait_for_selector(".dt-info")
    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in refused)
    tab.close()


def test_a_page_without_rejections_opens(show, world):
    corpus, data, about = world
    tab = show(explorer.page(corpus, {"gamma": data["gamma"]}, about))
    assert rows(tab) == [] and "no scored rejections" in tab.locator("#rejections").inner_text()


def test_tokens_are_aligned_as_drift_does(world):
    corpus, data, about = world
    own = data["alpha"]
    content = explorer.contents(corpus, data, about)
    assert len(content["rejections"]) == 5
    for rejection in content["rejections"]:
        for at, *_, nearest, hundredths in rejection["near"]:
            expected = signals.alignment(own.traces.iloc[rejection["prompt"]], own.traces.iloc[at], own.tokens)
            assert expected["place"].tolist() == nearest
            assert (100 * expected["distance"]).round().astype(int).tolist() == hundredths


class Changed(stores.Store):
    """The recorded store, with another pairs file."""

    def read(self, kind, *names):
        frame = super().read(kind, *names)
        return frame.assign(drift=frame["drift"] / 2) if kind == "pairs" else frame


def test_scores_of_other_pairs_are_refused(recorded_corpus):
    name = registry.published("chat").index[0]
    ((found, own),) = pipeline.scored_targets(RECORDED, "paraguard_mini", recorded_corpus, [name]).items()
    assert found == name and own.k == 5 and own.weights == PAPER_WEIGHTS and own.labeller == "combined"
    with pytest.raises(DataError, match="scores of other pairs"):
        pipeline.scored_targets(Changed("recorded"), "paraguard_mini", recorded_corpus, [name])


def test_targets_scored_in_two_ways_are_refused(recorded_corpus, monkeypatch):
    first, second = registry.published("chat").index[:2]

    def changed(path):
        meta = stores.read_meta(path)
        return meta | {"parameters": meta["parameters"] | {"k": 4}} if path.stem == second else meta

    monkeypatch.setattr(pipeline, "read_meta", changed)
    with pytest.raises(DataError, match=f"{second}.csv: scored with other weights, k or labeller than {first};"):
        pipeline.scored_targets(RECORDED, "paraguard_mini", recorded_corpus, [first, second])


@pytest.mark.parametrize("store", ["nowhere", "../up"])
def test_a_users_error_is_one_line(store, command, results):
    error = command("explorer", "--store", store).error
    assert error and "\n" not in error
    assert not (results / "explorer.html").exists()


@pytest.mark.slow
def test_the_recorded_rejections_are_all_there(command, results, show):
    path = paths.RESULTS / "explorer.html"
    assert paths.shown(path) in command("explorer").printed
    assert path.stat().st_size < 10e6
    labels = pd.concat([RECORDED.read("labels", "paraguard_mini", name) for name in registry.published("chat").index])
    n = int((labels["label"] == "reject").sum())
    tab = show(path.read_text(encoding="utf-8"))
    assert tab.locator(".dt-info").inner_text() == f"Rejections: {n:,}"
    tab.locator("button.open").first.click()
    assert tab.locator("li.neighbour").count() == 5 and tab.locator(".tokens li").count() > 25
