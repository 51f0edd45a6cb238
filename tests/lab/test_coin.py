"""A coin that answers a share of the refusals: worked by hand, and passed through the
rule of 07 a thousand times.
"""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.core import inference
from paraguard_lab.remedies import coin, verdicts
from paraguard_utils import registry, stores, unsafe
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns

CHAT = [*registry.published_systems("chat").index]
SAMPLE = ("smollm2-135m-instruct-q4_1--safety", "smollm2-135m-instruct-q4_1--none")
"""Systems that refuse much and little; a weekly run tries the others too."""
DRAWS = 1000
ANSWERED = 0.03  # share of the refusals; the former rule was passed by most such draws


def known(value, draws=(0.0, 0.0)):
    return Estimate(value, value, value, np.array(draws, float))


def test_by_hand():
    # 20 of 100 harmless prompts refused, then 10; 40 of 100 twins, then 35: a coin that
    # answers 10 of 20 answers 20 of 40 twins, the remedy 5 of them: 0.05 - 0.20
    before = known(0.20, (0.2, 0.4)), known(0.40, (0.4, 0.4))
    after = known(0.10, (0.1, 0.4)), known(0.35, (0.35, 0.3))
    found = coin.compare_with_coin(before, after)
    assert found.value == pytest.approx(-0.15)
    # in the second resample FRR does not fall
    assert found.draws == pytest.approx([-0.15, np.nan], nan_ok=True)


@pytest.mark.parametrize(("frr", "new"), [(0.2, 0.2), (0.2, 0.3), (0.0, 0.0)])
def test_where_frr_does_not_fall_there_is_no_coin(frr, new):
    found = coin.compare_with_coin((known(frr), known(0.4)), (known(new), known(0.3)))
    assert np.isnan(found.value)


def count_refusals(system):
    """Return clusters, and prompts and refusals by cluster: harmless ones, and twins."""
    record = stores.Store("recorded")
    counts = []
    for name in ("paraguard_mini", "paraguard_twins"):
        prompts = record.read("corpus", name)
        labels = record.read("labels", name, system).set_index("prompt_id")["label"]
        refused = labels[prompts["prompt_id"]].eq("reject").to_numpy()
        ids = unsafe.benign_cluster_of(prompts["cluster_id"])
        counts.append(pd.Series(refused).groupby(ids.to_numpy()).agg(["size", "sum"]))
    clusters = ClusterBootstrap(counts[0].index, 500)
    return clusters, [side.reindex(clusters.codes.index) for side in counts]


def estimate_share(clusters, refused, size):
    """The share refused, of refusals and prompts by cluster."""
    draws = clusters.counts @ refused / (clusters.counts @ size)
    return Estimate.percentile(refused.sum() / size.sum(), draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    "system",
    [
        pytest.param(one, marks=() if one in SAMPLE else pytest.mark.weekly)
        for one in CHAT
    ],
)
def test_a_coin_wins_in_at_most_one_of_twenty_draws(system):
    clusters, sides = count_refusals(system)
    untouched = []
    for side in sides:
        size, refused = side["size"].to_numpy(float), side["sum"].to_numpy()
        untouched.append(estimate_share(clusters, refused, size))
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(DRAWS):
        rates = []
        for side in sides:
            kept = rng.binomial(side["sum"], 1 - ANSWERED)
            rates.append(estimate_share(clusters, kept, side["size"].to_numpy(float)))
        against = coin.compare_with_coin(tuple(untouched), tuple(rates))
        changes = {"frr_change": rates[0] - untouched[0]}
        changes["twins_change"] = rates[1] - untouched[1]
        changes |= {"against_coin": against, "dr_change": clusters.undefined()}
        rows.append(to_columns(changes) | {"coin_p": inference.normal_p(against)})
    about = {"role": "remedy", "too_few_for_change": True, "over_p": 1.0}
    table = pd.DataFrame(rows).assign(remedy="coin", over_change=0.0, **about)
    judged = verdicts.add_remedy_verdicts(table)
    former = (judged["frr_change_high"] < 0) & (judged["twins_verdict"] == "kept")
    # without Holm's adjustment: the easiest case for a coin
    beats_coin = (judged["coin_p"] < verdicts.MAX_P) & (judged["against_coin"] < 0)
    assert (former & beats_coin).sum() <= 0.05 * DRAWS
    assert (judged["wins"] == "yes").sum() <= 0.05 * DRAWS
    if system.endswith("--safety"):
        assert former.mean() > 0.3, "the rule without a coin is passed by a coin"
