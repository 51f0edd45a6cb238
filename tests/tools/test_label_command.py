"""`paraguard label`: a file of answers gets a column of labels."""

import io

import pandas as pd
import pytest

from paraguard_lab.sheets import unescape_formulas
from paraguard_utils.models import encoder


def test_command_line(tmp_path, command):
    file = tmp_path / "answers.csv"
    file.write_text(
        "id,text,q,finish_reason\n01,\"I can't assist\nwith"
        ' that.",Why?,stop\n02,Sure.,How?,stop\n03,,,content_filter\n'
    )
    done = command("label", str(file), "--column", "text", "--request", "q")
    out = pd.read_csv(io.StringIO(done.printed), dtype=str, keep_default_na=False)
    assert list(out) == [
        "id",
        "text",
        "q",
        "finish_reason",
        "label",
        "kind",
        "rule",
        "p_refusal",
    ]
    assert out["id"].tolist() == ["01", "02", "03"]
    assert out["label"].tolist() == ["reject", "accept", "blocked"]
    done = command("label", str(file), "--column", "text", "--labeller", "cues")
    out = pd.read_csv(io.StringIO(done.printed), dtype=str, keep_default_na=False)
    assert list(out) == ["id", "text", "q", "finish_reason", "label", "kind", "rule"]
    assert out["label"].tolist() == ["reject", "accept", "blocked"]


FORMULAS = ["=cmd|x", "+1+cmd", "@x", "-x", "'=x", "''=x", "'tis", "-1.5", "\uff1dx"]


def test_formulas_are_escaped_and_come_back(tmp_path, command):
    asked = pd.DataFrame({"=id": FORMULAS, "response": [f"={one}" for one in FORMULAS]})
    file = tmp_path / "answers.csv"
    asked.to_csv(file, index=False)
    done = command("label", str(file), "--labeller", "cues")
    out = pd.read_csv(io.StringIO(done.printed), dtype=str, keep_default_na=False)
    for name in out:
        texts = [name, *out[name]]
        runs = [one for one in texts if one[:1] in "=+-@\uff1d" and one]
        assert runs in ([], ["-1.5"]), "a number is no formula"
    names = unescape_formulas(pd.Series(list(out)))
    back = unescape_formulas(out).set_axis(names, axis=1)
    pd.testing.assert_frame_equal(back[["=id", "response"]], asked, check_dtype=False)


@pytest.mark.parametrize("case", ["missing", "column", "request", "empty"])
def test_command_line_says_what_is_wrong(case, tmp_path, command):
    file = tmp_path / "answers.csv"
    if case != "missing":
        file.write_text("" if case == "empty" else "id,text\n1,Sure.\n")
    options = (
        ["--column", "text", "--request", "q"]
        if case == "request"
        else ["--column", "answer"]
    )
    done = command("label", str(file), *options)
    assert done.printed == "" and done.error
    assert len(done.error.splitlines()) == 1
    assert "answers.csv" in done.error


def test_without_the_encoders_packages_the_command_says_what_to_do(
    tmp_path, command, monkeypatch
):
    file = tmp_path / "answers.csv"
    file.write_text("id,response\n1,Sure.\n")

    def missing(*_):
        raise ModuleNotFoundError(
            "No module named 'sentence_transformers'", name="sentence_transformers"
        )

    monkeypatch.setattr(encoder, "load_encoder", missing)
    done = command("label", str(file))
    assert "sentence_transformers" in done.error and "--labeller cues" in done.error
    assert command("label", str(file), "--labeller", "cues").error == ""
