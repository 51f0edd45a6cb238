"""Holm's correction, exact shares and kappa: by hand, and as other packages do."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from paraguard_lab.core.inference import adjust_holm, exact_share


def test_the_share_of_prompts_on_their_own_is_exact():
    assert exact_share(0, 9)["share_high"] == pytest.approx(1 - 0.025 ** (1 / 9))
    assert np.isnan(list(exact_share(0, 0).values())).all()


@pytest.mark.slow
def test_statsmodels_adjusts_alike():
    p = np.concatenate(
        [np.random.default_rng(1).random(20) ** 4, [0.0, 1.0, 0.01, 0.01]]
    )  # ties, and what is above 1
    np.testing.assert_allclose(
        adjust_holm(pd.Series(p)), multipletests(p, method="holm")[1], rtol=1e-12
    )


@pytest.mark.slow
def test_holm_by_hand():
    # three p: 0.01 * 3, 0.03 * 2, and 0.04 * 1, which may not be the smaller: 0.06
    assert adjust_holm(pd.Series([0.01, np.nan, 0.04, 0.03])).tolist() == pytest.approx(
        [0.03, np.nan, 0.06, 0.06], nan_ok=True
    )
    assert np.isnan(adjust_holm(pd.Series([np.nan, np.nan]))).all()
