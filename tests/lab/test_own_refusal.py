"""A model's own refusal as a guard, read from recorded traces."""

import numpy as np
import pandas as pd
import pytest
from guarding import PANEL, check_entry, files_of

from paraguard_lab.guards import refusal
from paraguard_utils import settings, stores
from paraguard_utils.errors import Missing, SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import GuardOptions

REFUSALS = [name for name, entry in PANEL.items() if entry["kind"] == "refusal"]


def own_refusals(store, with_twins, names=REFUSALS):
    """The refusal guards of a store's corpora, by name."""
    recorded = stores.Store("recorded")
    corpora = {settings.CORPUS: recorded.read("corpus", settings.CORPUS)}
    if with_twins:
        corpora[settings.TWINS] = recorded.read("corpus", settings.TWINS)
    options = GuardOptions(store=store, corpora=corpora)
    loaded = [panel.load_guard(name, options) for name in names]
    return {guard.name: guard for guard in loaded}


@pytest.fixture(scope="module")
def refusals():
    return own_refusals(stores.Store("recorded"), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_says_what_a_reader_must_know(name, refusals):
    check_entry(refusals[name])


def test_the_cut_of_a_share_is_the_lowest_score_that_few_enough_reach():
    # 0.3 is reached by 3 of 5, 0.5 by 2, 0.7 by 1
    scores = np.array([0.5, 0.1, 0.7, 0.3, 0.1])
    assert [
        refusal.choose_by_share(scores, share) for share in (0.6, 0.5, 0.4, 0.2, 0.1)
    ] == [0.3, 0.5, 0.5, 0.7, 1.0]


def test_no_prompt_is_scored_by_what_its_own_cluster_taught():
    # 12 clusters of 2; each begins its answers with tokens of its own, so that a fold
    # knows nothing of another's
    clusters = pd.Series([f"c{number:02d}" for number in range(12) for _ in range(2)])
    teaches = (clusters < "c10").to_numpy()
    traces = pd.DataFrame(
        {
            "next_ids": [np.array([code]) for code in range(24)],
            "next_logprobs": [np.zeros(1)] * 24,
        }
    )
    labels = pd.DataFrame({"label": ["reject", "accept"] * 12})
    found = refusal.cross_fit(traces, labels, clusters, teaches)
    # an unknown token counts with the base rate of those who taught, one half in every
    # fold
    np.testing.assert_allclose(found, 0.5)
    one = clusters == "c03"
    changed = refusal.cross_fit(
        traces,
        labels.assign(label=labels["label"].mask(one, "reject")),
        clusters,
        teaches,
    )
    np.testing.assert_array_equal(changed[one], found[one])
    assert (
        changed > found
    ).sum() >= 16  # the base rate of everybody who learns of it has risen
    # a twin is scored in its cluster's fold: it hears nothing of what that cluster
    # taught
    twin = np.arange(24) >= 20
    own = clusters.mask(twin, "c03")
    heard = refusal.cross_fit(
        traces, labels.assign(label=labels["label"].mask(one, "reject")), own, teaches
    )
    np.testing.assert_array_equal(
        heard[twin], refusal.cross_fit(traces, labels, own, teaches)[twin]
    )
    # who does not teach, teaches nothing
    other = refusal.cross_fit(
        traces,
        labels.assign(label=labels["label"].mask(~teaches, "reject")),
        clusters,
        teaches,
    )
    np.testing.assert_array_equal(other, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
def test_recorded_refusal_scores_are_what_the_traces_say(name, refusals):
    one, recorded = refusals[name], stores.Store("recorded")
    for of in (settings.CORPUS, settings.TWINS):
        files = files_of(of, "recorded")
        texts, kept = files.prompts, files.read("guards", name)
        assert panel.score_with_guard(files, texts, one).equals(kept), (
            "the version is that of the record"
        )
        np.testing.assert_allclose(
            one.score(texts["text"].tolist()), kept["score"], rtol=1e-4
        )
    reach = recorded.read("guards", settings.CORPUS, name)["score"] >= one.threshold
    assert 0.04 < reach.mean() <= PANEL[name]["rejects"]


@pytest.mark.slow
def test_a_refusal_guard_says_what_to_run_and_what_it_does_not_score(
    refusals, results, capsys
):
    live = stores.Store("live")
    prompts = stores.Store("recorded").read("corpus", settings.CORPUS)
    assert panel.ask_guards(live, {settings.CORPUS: prompts}, REFUSALS) == {
        settings.CORPUS: {}
    }
    assert capsys.readouterr().err.count("left out: ") == len(REFUSALS)
    advice = (
        r"answers of me/it without a system prompt; run: paraguard run 02 --store live"
        r" --model me/it -p system_prompts="
    )
    with pytest.raises(SettingsError, match=advice):
        panel.ask_guards(live, {settings.CORPUS: prompts}, ["refusal:me/it"])
    with pytest.raises(SettingsError, match="in 05_guard_comparison only"):
        panel.load_guard(REFUSALS[0])
    with pytest.raises(Missing, match="there are none to these prompts"):
        refusals[REFUSALS[0]].score(["never asked"])
    named = own_refusals(
        stores.Store("recorded"), False, ["refusal:smollm2-135m-instruct"]
    )
    assert list(named) == ["smollm2-135m-instruct-refusal"], (
        "under the name of the record"
    )
