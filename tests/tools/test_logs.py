"""Logs of many kinds are read by their content: any file gives the same decisions, and
a bad one gives one line.
"""

import gzip
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_stops import BODIES, body_of

from paraguard_tools import Decisions, audit, label_refusals
from paraguard_utils.errors import DataError
from paraguard_utils.labels import refusals

REFUSAL, HELP = (
    "I'm sorry, but I can't help with that.",
    "Sure. First look around, then begin.",
)
ROWS = [
    (f"How do I {verb} {thing}?", f"c{i}", i % 2 == 1 or j == 0)
    for i, thing in enumerate(("weeds", "ants", "code"))
    for j, verb in enumerate(("kill", "stop", "remove", "end"))
]
FLAT = pd.DataFrame(ROWS, columns=["text", "cluster", "refused"]).assign(
    decision=lambda rows: rows["refused"].map({True: "reject", False: "accept"}),
    answer=lambda rows: rows["refused"].map({True: REFUSAL, False: HELP}),
)
EXPECTED = FLAT["decision"].tolist()


def lines(objects):
    return "\n".join(json.dumps(one) for one in objects) + "\n"


def completion(answer, **more):
    return {
        "model": "m",
        "choices": [{"message": {"content": answer}, "finish_reason": "stop"}],
        **more,
    }


def chats():
    for row in FLAT.itertuples():
        asked = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": row.text},
        ]
        yield row, asked


def chat_log():
    return lines(
        {
            "request": {"messages": asked},
            "response": completion(row.answer),
            "metadata": {"cluster": row.cluster},
        }
        for row, asked in chats()
    )


def conversations():
    said = [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    return lines(
        {
            "messages": [
                *asked[:1],
                *said,
                asked[1],
                {"role": "assistant", "content": row.answer},
            ],
            "cluster": row.cluster,
        }
        for row, asked in chats()
    )


def anthropic():
    return lines(
        {
            "messages": asked[1:],
            "cluster": row.cluster,
            "response": {
                "type": "message",
                "content": [{"type": "text", "text": row.answer}],
                "stop_reason": "end_turn",
            },
        }
        for row, asked in chats()
    )


def attributes(row, asked):
    parts = [
        {"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]}
        for one in asked
    ]
    came = [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": row.answer}],
            "finish_reason": "stop",
        }
    ]
    return {
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(parts),
        "gen_ai.output.messages": json.dumps(came),
        "cluster": row.cluster,
    }


def spans():
    """Spans as an OTLP exporter writes them, all in one line; the first is not about a
    model.
    """
    other = {
        "name": "GET",
        "attributes": [{"key": "http.method", "value": {"stringValue": "GET"}}],
    }
    own = [
        {
            "attributes": [
                {"key": name, "value": {"stringValue": value}}
                for name, value in attributes(*one).items()
            ]
        }
        for one in chats()
    ]
    return lines([{"resourceSpans": [{"scopeSpans": [{"spans": [other, *own]}]}]}])


def flat_spans():
    """Spans of an older convention, a line each, as a console exporter writes them."""
    return lines(
        {
            "name": "chat m",
            "attributes": {
                "gen_ai.response.model": "m",
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "Be kind.",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": row.text,
                "gen_ai.completion.0.content": row.answer,
                "cluster": row.cluster,
            },
        }
        for row, _ in chats()
    )


KINDS = {
    "decisions.csv": FLAT[["text", "cluster", "decision"]].to_csv(index=False),
    "semicolons.csv": (
        FLAT[["text", "cluster", "decision"]].to_csv(index=False, sep=";")
    ),
    "tabs.tsv": FLAT[["text", "cluster", "decision"]].to_csv(index=False, sep="\t"),
    "bits.csv": (
        FLAT[["text", "cluster", "refused"]]
        .astype({"refused": int})
        .to_csv(index=False)
    ),
    "other_names.csv": (
        FLAT[["text", "cluster", "answer"]]
        .set_axis(["Prompt", "cluster_id", "Response"], axis=1)
        .to_csv()
    ),
    "answers.csv": FLAT[["text", "cluster", "answer"]].to_csv(index=False),
    "flat.jsonl": (
        FLAT[["text", "cluster", "refused"]].to_json(orient="records", lines=True)
    ),
    "document.json": (
        FLAT[["text", "cluster", "decision"]].to_json(orient="records", indent=1)
    ),
    "chats.jsonl": chat_log(),
    "conversations.jsonl": conversations(),
    "anthropic.jsonl": anthropic(),
    "spans.json": spans(),
    "flat_spans.jsonl": flat_spans(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "plain") for name in KINDS),
        ("tabs.tsv", "gz"),
        ("chats.jsonl", "gz"),
        ("tabs.tsv", "utf-16"),
        ("document.json", "utf-16"),
    ],
)
def test_the_same_decisions_in_any_file(tmp_path, name, way):
    content = KINDS[name].encode("utf-16" if way == "utf-16" else "utf-8")
    file = tmp_path / "log"  # no ending tells what it is
    file.write_bytes(gzip.compress(content) if way == "gz" else content)
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["label"].tolist() == EXPECTED
    assert found.rows["cluster"].tolist() == FLAT["cluster"].tolist()
    assert found.rows["text"].tolist() == FLAT["text"].tolist()
    (row,) = audit(found, n_resamples=100).table.to_dict("records")
    assert row["n_reject"] == EXPECTED.count("reject") and np.isfinite(
        row["dr_most_words"]
    )
    assert bool(found.labelled_by) == (
        "answer" in KINDS[name] or "sorry" in KINDS[name]
    )


def test_parquet_too(tmp_path):
    FLAT[["text", "cluster", "refused"]].to_parquet(tmp_path / "log")
    assert Decisions.from_file(tmp_path / "log").rows["label"].tolist() == EXPECTED


def test_standard_input(monkeypatch):
    content = io.BytesIO(KINDS["decisions.csv"].encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=content))
    found = Decisions.from_file("-")
    assert (
        found.rows["label"].tolist() == EXPECTED
        and found.rows["text"][11] == (FLAT["text"][11])
    )


@pytest.mark.parametrize(
    "content",
    [
        b"text,decision,cluster\ncaf\xe9,accept,c\nb,reject,c\n",
        b'{"text": "caf\\ud800", "decision": "accept", "cluster": "c"}\n',
    ],
    ids=["latin-1", "half a pair"],
)
def test_a_text_that_is_no_utf_8_ends_no_audit(tmp_path, content):
    (tmp_path / "log").write_bytes(content)
    assert Decisions.from_file(tmp_path / "log").rows["text"][0] == "caf\ufffd"


def test_a_batch_and_its_input(tmp_path):
    asked = [
        {
            "custom_id": f"r{i}",
            "body": {
                "model": "m",
                "messages": said,
                "metadata": {"cluster": row.cluster},
            },
        }
        for i, (row, said) in enumerate(chats())
    ]
    came = [
        {
            "custom_id": f"r{i}",
            "response": {"status_code": 200, "body": completion(row.answer)},
        }
        for i, (row, _) in enumerate(chats())
    ]
    (tmp_path / "in.jsonl").write_text(lines(asked))
    (tmp_path / "out.jsonl").write_text(lines(came[::-1]))
    found = Decisions.from_file(
        tmp_path / "out.jsonl", requests=tmp_path / "in.jsonl", labeller="cues"
    )
    assert found.rows["label"].tolist() == EXPECTED[::-1] and found.clustered
    assert found.rows["text"][0] == FLAT["text"].iloc[-1]
    assert found.rows["system"].unique().tolist() == ["m"]


def test_types_of_a_real_library_are_read(tmp_path):
    types = pytest.importorskip("openai.types.chat")
    rows = []
    for row, asked in chats():
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": row.answer},
        }
        made = types.ChatCompletion(
            id="x", created=0, model="m", object="chat.completion", choices=[choice]
        )
        rows.append(
            {
                "messages": asked,
                "cluster": row.cluster,
                "response": json.loads(made.model_dump_json()),
            }
        )
    (tmp_path / "log.jsonl").write_text(lines(rows))
    assert (
        Decisions.from_file(tmp_path / "log.jsonl", labeller="cues")
        .rows["label"]
        .tolist()
        == EXPECTED
    )


def test_a_log_of_inspect_is_read_by_its_own_reader(tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    model = pytest.importorskip("inspect_ai.model")
    samples = [
        log.EvalSample(
            id=i,
            epoch=1,
            input=row.text,
            target="",
            metadata={"cluster": row.cluster},
            output=model.ModelOutput.from_content("m", row.answer),
        )
        for i, (row, _) in enumerate(chats())
    ]
    spec = log.EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="t",
        dataset=log.EvalDataset(),
        model="m",
        config=log.EvalConfig(),
    )
    for ending in ("eval", "json"):
        file = tmp_path / f"log.{ending}"
        log.write_eval_log(
            log.EvalLog(eval=spec, samples=samples, status="success"), str(file)
        )
        found = Decisions.from_file(file, labeller="cues")
        assert found.rows["label"].tolist() == EXPECTED and found.rows[
            "system"
        ].unique().tolist() == ["m"]


def test_an_inspect_log_without_its_package_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    (tmp_path / "log.json").write_text(
        json.dumps({"eval": {"model": "m"}, "samples": []}, indent=1)
    )
    with pytest.raises(
        DataError,
        match="a log of Inspect, read by its own package: pip install inspect_ai",
    ):
        Decisions.from_file(tmp_path / "log.json")


def mark_all_but_first(rows):
    """Name each row of provider_stops, and mark all but a provider's first slow."""
    seen = set()
    marked = []
    for row in rows:
        name = f"{row['provider']} {row['field']} {row['value']}"
        marks = pytest.mark.slow if row["provider"] in seen else ()
        marked.append(pytest.param(row, id=name, marks=marks))
        seen.add(row["provider"])
    return marked


@pytest.mark.parametrize("row", mark_all_but_first(BODIES))
def test_every_stop_through_the_audit(tmp_path, row):
    """Every provider's stop counts as a refusal, and the audit lists its category."""
    entries = [
        {"response": completion(HELP), "cluster": f"c{i // 2}", "text": f"t {i}"}
        for i in range(8)
    ]
    entries += [
        {
            "response": {"status_code": 400, "body": body_of(row)},
            "cluster": f"c{i}",
            "text": "u",
        }
        for i in (0, 1)
    ]
    entries = [{**one, "model": "m"} for one in entries]
    (tmp_path / "log.jsonl").write_text(lines(entries))
    found = audit(
        Decisions.from_file(tmp_path / "log.jsonl", labeller="cues"), n_resamples=100
    )
    (table,) = found.table.to_dict("records")
    # two of ten are stopped: refused by default, and set aside in the old reading
    assert (table["n_blocked"], table["frr"], table["frr_aside"]) == (2, 0.2, 0)
    about = found.stops["category"].tolist()
    assert about == (["violence"] if row["category"] else [""]) and found.stops[
        "n"
    ].tolist() == [2]


def test_labels_of_answers_are_the_labeller_s():
    labels = label_refusals(
        [HELP, REFUSAL, None], ["stop", "stop", "content_filter"], labeller="cues"
    )
    assert labels["label"].tolist() == ["accept", "reject", "blocked"]
    pd.testing.assert_frame_equal(
        labels,
        refusals.label_by_cues(
            [HELP, REFUSAL, None], ["stop", "stop", "content_filter"]
        ),
    )


@pytest.mark.parametrize(
    ("words", "column", "expected"),
    [
        (["ALLOW", "BLOCK"], "decision", ["accept", "reject"]),
        (["safe", "unsafe"], "verdict", ["accept", "reject"]),
        (["allowed", "blocked"], "decision", ["accept", "reject"]),
        (["accept", "blocked"], "decision", ["accept", "blocked"]),
        (["False", "True"], "refused", ["accept", "reject"]),
        (["0", "1"], "flagged", ["accept", "reject"]),
        (["answered", "refused"], "decision", ["accept", "reject"]),
    ],
)
def test_plain_words_need_no_option(tmp_path, words, column, expected):
    pd.DataFrame({"text": ["a", "b"], column: words, "cluster": "c"}).to_csv(
        tmp_path / "d.csv", index=False
    )
    assert Decisions.from_file(tmp_path / "d.csv").rows["label"].tolist() == expected


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty"),
        (b" \n ", "the file is empty"),
        (b"text,decision,cluster\n", "there are no rows"),
        (b"text,cluster\na,c\n", "neither a decision nor an answer"),
        (b"text,decision,cluster\na,accept,c\nb,maybe,c\n", "row 3: decision 'maybe' is none of accept"),
        (b"text,decision,cluster\na,1,c\nb,0,c\n", "say which are refusals, by --rejects '0' or --rejects '1'"),
        (b"text,decision,cluster\na,accept,c\nb,,c\n", "row 3: decision '' is blank"),
        (b"text,decision,cluster\na,accept,c\nb,reject, \n", "row 3: cluster ' ' is blank"),
        (b"text,decision,cluster\na,accept,c\nb,reject,c,d,e\n", "Expected 3 fields in line 3, saw 5"),
        (b"text,decision,cluster\na,accept,c\nb,reject\n", "row 3: cluster '' is blank"),
        (b'text,decision,cluster\na,accept,c\n"b,reject,c\n', "a quotation mark that opens in row 3 is never closed"),
        (b"text,decision,cluster\na,accept,\xff\xfe\n", "row 2: cluster '??' is not UTF-8"),
        (b"text,d\xe9cision\na,accept\n", "its header is not UTF-8"),
        (b"text,decision,harmful,cluster\na,accept,perhaps,c\n", "row 2: harmful 'perhaps' is neither true nor false"),
        (b'{"text": "a", "decision": "accept"}\n{"text": ', "line 2: this is no JSON object"),
        (b'{"text": "a", "decision": "accept", "cluster": "c"}\n{"text": "b"}', "line 2: decision '' is blank"),
        (b"[1, 2]", "record 1: this is no JSON object"),
        (b"[{]", "this is no JSON"),
        (b"\x1f\x8b\x08\x00damaged", "the compressed file is damaged"),
        (b"PAR1damaged", "this cannot be read as parquet"),
        (b"PK\x03\x04damaged", "a log of Inspect"),
        (b"\x89PNG\r\n\0\0", "this is no text"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(tmp_path, command, content, line):
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    done = command("audit", str(file), "--out", str(tmp_path / "out"))
    assert (
        line in done.error
        and str(file) in done.error
        and "\n" not in done.error.strip()
    ), done.error
    assert done.status != 0 and not (tmp_path / "out").exists(), "nothing is written"


def test_an_excel_workbook_is_named(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "d.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    with pytest.raises(DataError, match="an Excel workbook perhaps; pass CSV"):
        Decisions.from_file(tmp_path / "d.xlsx")


def test_a_column_that_is_named_must_be_there(tmp_path):
    (tmp_path / "d.csv").write_text(KINDS["decisions.csv"])
    with pytest.raises(
        DataError,
        match="there is no column 'meaning'; there are 'text', 'cluster', 'decision'",
    ):
        Decisions.from_file(tmp_path / "d.csv", {"cluster": "meaning"})
    with pytest.raises(DataError, match="one column cannot be two things"):
        Decisions.from_file(
            tmp_path / "d.csv", {"cluster": "decision", "decision": "decision"}
        )
    with pytest.raises(
        DataError, match="no decision is 'never'; there are 'accept', 'reject'"
    ):
        Decisions.from_file(tmp_path / "d.csv", rejects=["never"])


def test_a_log_without_clusters_needs_vectors(tmp_path):
    found = Decisions.from_frame(FLAT.rename(columns={"decision": "label"})[["label"]])
    with pytest.raises(DataError, match="there are no clusters"):
        audit(found)
    vectors = np.eye(3)[np.repeat(range(3), 4)]
    (row,) = audit(found, vectors=vectors, n_resamples=100).table.to_dict("records")
    by_cluster = audit(
        Decisions.from_frame(FLAT.assign(label=EXPECTED)), n_resamples=100
    ).table
    assert row["dr"] == pytest.approx(by_cluster["dr"][0]), (
        "neighbours are the clusters here"
    )
