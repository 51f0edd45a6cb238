"""The nearest seeds of variants, by hand."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.corpus import nearest_seeds
from paraguard_utils import settings, stores
from paraguard_utils.corpus import inputs

CORPUS = pd.DataFrame(
    {
        "prompt_id": ["a-0", "a-1", "a-2", "b-0", "b-1"],
        "cluster_id": list("aaabb"),
        "variant": [0, 1, 2, 0, 1],
        "strategy": ["seed", "lexical", "rewrite", "seed", "lexical"],
        "text": ["A", "A one", "A two", "B", "B one"],
    }
)
# unit vectors at 0, 30, 60 degrees (cluster a) and 90, 20 degrees (cluster b)
VECTORS = np.array([[np.cos(x), np.sin(x)] for x in np.radians([0, 30, 60, 90, 20])])


def test_spread_by_hand():
    variants = nearest_seeds.measure_spread(CORPUS, VECTORS)
    # a-2 lies 60 degrees from its seed and 30 from b's; b-1 70 from its own and 20 from
    # a's
    assert variants["nearest_seed"].tolist() == ["a", "b", "a"]
    assert variants["similarity"].to_numpy() == pytest.approx(
        np.cos(np.radians([30, 60, 70]))
    )
    assert variants["margin"][0] == pytest.approx(
        np.cos(np.radians(30)) - np.cos(np.radians(60))
    )
    agreement = nearest_seeds.nearest_seed_share(variants).iloc[0]
    assert (agreement["own"], agreement["variants"]) == (1, 3) and agreement[
        "share"
    ] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", [settings.CORPUS, settings.OLD_TWINS])
def test_recorded_variants_lie_nearest_to_their_own_seed(name):
    files = stores.CorpusFiles(stores.Store("recorded"), name)
    vectors = inputs.make_embedder(files)(files.prompts["text"].tolist())
    variants = nearest_seeds.measure_spread(files.prompts, vectors)
    assert (variants["nearest_seed"] == variants["cluster_id"]).mean() >= 0.98
