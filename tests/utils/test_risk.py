"""The frozen risk scorer, what may take its place, and how it is described."""

import pandas as pd
import pytest

from paraguard_utils.corpus import risk
from paraguard_utils.errors import SettingsError


def test_the_scorer_is_frozen():
    assert risk.risk_data_digest() == (
        "87dc87cdc23b1aae2806b545a40c1c9aaffc2a56c776c539002e2fe5b4ae6d5f"
    )


def test_lexical_risk_by_hand():
    terms = pd.read_csv(risk.CHARGED_TERMS_FILE).set_index("term")["weight"]
    kill, gun = terms["kill*"], terms["gun"]
    # 1 - (1 - kill)(1 - gun); a repeated word counts once, "skill" and "gunther" not at
    # all
    assert risk.lexical_risk("Killing, killing and a gun") == pytest.approx(
        1 - (1 - kill) * (1 - gun)
    )
    assert risk.lexical_risk("the skill of Gunther") == 0


def test_an_unknown_scorer_is_one_clear_error():
    with pytest.raises(
        SettingsError,
        match="no risk scorer 'perspective'; there are surface-risk-1, module:function",
    ):
        risk.load_risk_scorer("perspective")
