"""Whether surface, brevity and form tell harmful twins from their clusters."""

import numpy as np
import pytest

from paraguard_lab.corpus import twins
from paraguard_utils import settings, stores
from paraguard_utils.core.words import split_words


@pytest.fixture(scope="module")
def matched():
    """The twins that are as long as what they are twins of."""
    return stores.Store("recorded").read("corpus", settings.TWINS)


@pytest.mark.slow
def test_form_hardly_tells_matched_twins_from_their_clusters(matched, recorded_corpus):
    told = twins.measure_twin_auc(recorded_corpus, matched)
    assert all(
        0.4 <= told[name] <= 0.6 for name in ("auc_risk", "auc_brevity", "auc_form")
    ), told
    assert told["auc_letters"] < 0.65, "their words are a little shorter"
    lengths = [
        frame["text"].map(lambda line: len(split_words(line)))
        for frame in (recorded_corpus, matched)
    ]
    medians = [
        own.groupby(np.arange(len(own)) // 6).median().to_numpy() for own in lengths
    ]  # both are in one order
    assert abs(np.median(medians[1] - medians[0])) <= 1


@pytest.mark.slow
def test_form_tells_twins_that_are_shorter(recorded_corpus):
    short = recorded_corpus.assign(
        text=recorded_corpus["text"].str.split().str[:9].str.join(" ")
    )
    told = twins.measure_twin_auc(recorded_corpus, short)
    assert (
        told["auc_brevity"] > 0.99
        and told["auc_form"] > 0.99
        and told["auc_risk"] == pytest.approx(0.5)
    )
