"""The frozen risk scorer, what may take its place, and how it is described."""

import numpy as np
import pandas as pd
import pytest
import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paraguard_utils.corpus import risk
from paraguard_utils.errors import ModelError, SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.models import encoder


def test_the_scorer_is_frozen():
    assert risk.risk_data_digest() == risk.RISK_DATA_DIGEST


def test_lexical_risk_by_hand():
    terms = pd.read_csv(risk.CHARGED_TERMS_FILE).set_index("term")["weight"]
    kill, gun = terms["kill*"], terms["gun"]
    # 1 - (1 - kill)(1 - gun); a repeated word counts once, "skill" and "gunther" not at
    # all
    assert risk.lexical_risk("Killing, killing and a gun") == pytest.approx(
        1 - (1 - kill) * (1 - gun)
    )
    assert risk.lexical_risk("the skill of Gunther") == 0
    assert (
        risk.count_charged_terms("Killing, killing and a gun, the skill of Gunther")
        == 2
    )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A tiny classifier of two labels in a folder."""
    folder = tiny.write(tmp_path_factory.mktemp("models") / "tiny")
    labels = {"id2label": {0: "fine", 1: "toxic"}, "label2id": {"fine": 0, "toxic": 1}}
    network = AutoModelForSequenceClassification.from_pretrained(folder, **labels)
    network.save_pretrained(folder)
    return folder


def test_a_guard_or_a_classifier_can_take_its_place(classifier):
    texts = ["Which bread goes with soup?", "you are a fucking idiot", "a " * 40]
    guard = risk.load_risk_scorer("better-profanity")
    assert (
        guard.score(texts, encoder.encode_texts).tolist()
        == panel.load_guard("better-profanity").score(texts)
        == [0, 1, 0]
    )
    toxic, fine = (
        risk.load_risk_scorer(f"{classifier}#{label}") for label in ("toxic", "fine")
    )
    found = toxic.score(texts, encoder.encode_texts)
    assert found.shape == (3,) and found + fine.score(
        texts, encoder.encode_texts
    ) == pytest.approx(1)
    assert toxic.identity.startswith("tiny-") and "#toxic " in toxic.identity
    # padding beside longer texts changes nothing
    assert found[0] == pytest.approx(
        toxic.score(texts[:1], encoder.encode_texts)[0], abs=1e-5
    )
    network = AutoModelForSequenceClassification.from_pretrained(classifier)
    inputs = AutoTokenizer.from_pretrained(classifier)(texts[1], return_tensors="pt")
    assert found[1] == pytest.approx(
        network(**inputs).logits.softmax(-1)[0, 1].item(), abs=1e-5
    )


def test_an_unknown_scorer_is_one_clear_error(classifier, tmp_path):
    with pytest.raises(
        SettingsError,
        match="no risk scorer 'perspective'; there are surface-risk-1, alt-profanity",
    ):
        risk.load_risk_scorer("perspective")
    with pytest.raises(SettingsError, match="has no label 'harm'; it has fine, toxic"):
        risk.load_risk_scorer(f"{classifier}#harm")
    with pytest.raises(ModelError, match="is neither"):
        risk.load_risk_scorer(f"{tmp_path / 'nothing'}#toxic")


def test_areas_by_hand():
    # scores 0.9 0.6 | 0.7 0.1: of the four pairs (unsafe, safe) three are in order, 0.6
    # < 0.7 is not
    scorer = risk.RiskScorer(
        "by-hand 1", lambda texts, embed: np.array([0.9, 0.6, 0.7, 0.1])
    )
    texts = ["kill a gun", "kill", "bread", "soup"]
    found = risk.risk_auc(
        texts, np.array([True, True, False, False]), scorer, resamples=200
    )
    assert found["scorer"].tolist() == ["by-hand", "keyword count", "difference"]
    assert found["auc"].tolist() == [0.75, 1.0, -0.25]
    assert (found["auc_low"] <= found["auc"]).all() and (
        found["auc"] <= found["auc_high"]
    ).all()
    assert (found["safe"] == 2).all() and (found["unsafe"] == 2).all()


def test_distribution_by_hand():
    frame = pd.DataFrame({"group": list("aab"), "risk": [0.0, 0.31, 1.0]})
    found = risk.describe_risks(frame, 0.3, 0.7).set_index(["group", "low"])
    assert found.groupby("group")["n"].sum().to_dict() == {"a": 2, "b": 1}
    assert found["n"][("a", 0.0)] == 1 and found["within"][("a", 0.0)] == 0.5
    assert found.loc["b"]["n"].iloc[-1] == 1 and found.loc["b"]["median"].iloc[0] == 1
