"""Asking that ends when it is sure: the bounds by difference quotients, how often they
err, and a run that stops.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from paraguard_lab.core import until_sure
from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_utils.errors import SettingsError
from paraguard_utils.labels import systems
from paraguard_utils.settings import QuerySettings, check_settings
from paraguard_utils.stores import CorpusFiles, Store


def drawn(rng, clusters, rate, correlation):
    """Return counts of clusters of six whose probit intercepts have a latent
    correlation.
    """
    spread = np.sqrt(correlation / (1 - correlation))
    location = norm.ppf(rate) * np.sqrt(1 + spread**2)
    refused = rng.binomial(6, norm.cdf(location + spread * rng.normal(size=clusters)))
    return pd.DataFrame({"cluster_id": range(clusters), "n": 6, "rejected": refused})


def test_bounds_by_difference_quotients():
    decided = drawn(np.random.default_rng(3), 60, 0.5, 0.4)
    n, r = decided["n"].to_numpy(float), decided["rejected"].to_numpy(float)
    value, low, high = until_sure.disagreement_so_far(decided, 200, alpha=0.1)
    whole = disagreement_parts(n, r)[2]
    # The influence of a cluster is the slope of ln DR as it counts a little more.
    step = 1e-6 * np.eye(60)
    slopes = [
        np.log(disagreement_parts(n, r, 1 + one)[2] / whole) / 1e-6 for one in step
    ]
    error = np.sqrt(60 * np.var(slopes))
    # tuned to 100 clusters: rho^2 = (-2 ln 0.1 + ln(1 - 2 ln 0.1)) / 100 = (4.6052 +
    # 1.7237) / 100
    spread = 60 * 0.063289
    half = error * np.sqrt(
        2 * (spread + 1) / spread * np.log(np.sqrt(spread + 1) / 0.1)
    )
    assert value == pytest.approx(whole)
    assert np.log([whole / low, high / whole]) == pytest.approx([half, half], rel=1e-4)


def test_too_few_refusals_have_no_bounds():
    too_few = pd.DataFrame({"n": [6] * 30, "rejected": [3] * 30})  # 90 refusals
    value, low, high = until_sure.disagreement_so_far(too_few, 200)
    assert value == pytest.approx(
        disagreement_parts(too_few["n"], too_few["rejected"])[2]
    )
    assert np.isnan([low, high]).all()


@pytest.mark.slow
def test_looking_again_and_again_errs_seldom_and_saves_half():
    # at refusal rate 0.5 a latent correlation of 0.309 is DR 0.8, and 0.588 is DR 0.6:
    # DR = 1 - 2 asin(c) / pi
    rng, found = np.random.default_rng(0), {}
    for ratio in (0.8, 0.6):
        ends = []
        for _ in range(200):
            decided = drawn(rng, 200, 0.5, np.sin(np.pi / 2 * (1 - ratio)))
            for asked in range(10, 201, 10):
                _, low, high = until_sure.disagreement_so_far(decided.head(asked), 200)
                if low > 0.8 or high <= 0.8:
                    break
            ends.append((low > 0.8, high <= 0.8, asked))
        found[ratio] = pd.DataFrame(
            ends, columns=["worse", "not worse", "asked"]
        ).mean()
    assert max(found[0.8][["worse", "not worse"]]) <= 0.05 + 2 * np.sqrt(
        0.05 * 0.95 / 200
    )
    assert found[0.6]["not worse"] >= 0.95 and found[0.6]["asked"] <= 100


@pytest.mark.slow
def test_a_run_ends_when_it_is_sure_and_a_later_one_asks_the_rest(
    tiny_folder, recorded_corpus, results, answers, capsys
):
    given = {
        "store": "test",
        "corpus": "mini",
        "model": str(tiny_folder),
        "system_prompts": ["safety"],
        "max_new_tokens": 2,
        "batch": 30,
    }
    # answers are dealt by the words of a request: meaning decides nothing, and DR is
    # about 1
    corpus = recorded_corpus.head(600)
    files = CorpusFiles(Store("test"), "mini")
    stopping = check_settings(given | {"stop": 0.5}, QuerySettings)
    ended = systems.ask_systems(files, corpus, stopping)
    asked, printed = len(answers), capsys.readouterr().out
    assert not ended and 300 <= asked < 600
    assert (
        f"--safety: worse after {asked // 6} of 100 clusters, {asked} prompts: DR "
        in printed
    )
    found = systems.ask_systems(files, corpus, check_settings(given, QuerySettings))
    assert len(answers) == 600 and [len(traces) for traces in found.values()] == [600]


@pytest.mark.parametrize(
    "more",
    [{"store": "recorded"}, {"limit": 9}, {"shard": "1/2"}, {"base_url": "file:///x"}],
)
def test_only_a_plain_live_run_stops_early(more):
    with pytest.raises(SettingsError, match="parameter 'stop'"):
        check_settings(
            {
                "store": "test",
                "corpus": "mini",
                "stop": 0.8,
                "model": "m" if "base_url" in more else "",
            }
            | more,
            QuerySettings,
        )
