"""The frozen risk scorer, what may take its place, and how it is described."""

import hashlib

import pandas as pd
import pytest

from paraguard_utils.corpus import risk
from paraguard_utils.errors import DataError, SettingsError
from paraguard_utils.models import encoder


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


OWN_SCORER = """
def by_length(texts):
    return [min(len(text) / 100, 1.0) for text in texts]

def wrong(texts):
    return [2.0 for text in texts]

def missing(texts):
    return [float("nan") for text in texts]
"""


def test_a_function_can_take_its_place(tmp_path, monkeypatch):
    file = tmp_path / "own_risk.py"
    file.write_text(OWN_SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    scorer = risk.load_risk_scorer("own_risk:by_length")
    assert scorer.score(["a" * 30, "a" * 400], encoder.encode_texts).tolist() == [
        0.3,
        1.0,
    ]
    name, digest = scorer.identity.split()
    assert name == "own_risk:by_length"
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith(digest)
    with pytest.raises(DataError, match="own_risk:wrong gives 2 for text 1"):
        risk.load_risk_scorer("own_risk:wrong").score(["a"], encoder.encode_texts)
    with pytest.raises(DataError, match="own_risk:missing gives no risk for text 1"):
        risk.load_risk_scorer("own_risk:missing").score(["a"], encoder.encode_texts)
    with pytest.raises(SettingsError, match="the risk scorer own_risk:other cannot"):
        risk.load_risk_scorer("own_risk:other")


def test_an_unknown_scorer_is_one_clear_error():
    with pytest.raises(
        SettingsError,
        match="no risk scorer 'perspective'; there are surface-risk-1, module:function",
    ):
        risk.load_risk_scorer("perspective")
