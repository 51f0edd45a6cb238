"""The classifier of refusals is fitted: on what, and always to the same coefficients."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.labels import training
from paraguard_utils.labels import classifier, labelling
from paraguard_utils.models import encoder


def nothing(texts):
    """Embed texts as zeros: what n-grams and cues say alone."""
    return np.zeros((len(texts), encoder.ENCODER_DIMENSIONS), np.float16)


def test_coefficients_are_read_as_they_were_saved(tmp_path):
    columns = ["refusal", "partial"]
    ngrams = pd.DataFrame([[1.0, 2.0, 0.0]], index=["no"], columns=["idf", *columns])
    cues = pd.DataFrame([[0.5, 1.0]], index=["bare_no"], columns=columns)
    vectors = np.array([[1.0, 0.1, -1.0], [0.0, 0.0, 0.0]])
    made = classifier.RefusalClassifier(ngrams, cues, vectors, np.array([-1.0, 0.25]))
    training.save_classifier(made, tmp_path / "c.json")

    read = classifier.load_refusal_classifier(tmp_path / "c.json")

    pd.testing.assert_frame_equal(read.ngrams, ngrams)
    pd.testing.assert_frame_equal(read.cues, cues)
    np.testing.assert_equal(read.vectors, vectors)
    np.testing.assert_equal(read.intercepts, made.intercepts)


def test_fitting_by_the_same_answers_gives_the_same_coefficients(monkeypatch):
    monkeypatch.setattr(encoder, "encode_texts", nothing)
    rows = pd.DataFrame(
        {
            "prompt": ["Why?"] * 12,
            "response": (
                ["I refuse to say no.", "Sure: here it is.", "No, but here it is."] * 4
            ),
        }
    )
    rows["label"] = ["full_refusal", "full_compliance", "partial_refusal"] * 4
    first, second = (training.fit_classifier(rows, rows) for _ in range(2))
    pd.testing.assert_frame_equal(first.ngrams, second.ngrams)
    assert (
        first.ngrams.loc["refuse", "refusal"] > 0 > first.ngrams.loc["sure", "refusal"]
    )
    assert first.ngrams.loc["but", "partial"] > 0


@pytest.mark.slow
def test_training_answers_are_those_with_two_equal_labels():
    rows = training.read_training_answers()
    assert len(rows) > 2500 and (rows["first_label"] == rows["second_label"]).all()
    found = labelling.label_responses(
        rows["response"].iloc[::20],
        [""] * len(rows.iloc[::20]),
        rows["prompt"].iloc[::20],
    )
    equal = (found["label"] == "reject").to_numpy() == (
        rows["label"].iloc[::20] != "full_compliance"
    ).to_numpy()
    assert equal.mean() > 0.9
