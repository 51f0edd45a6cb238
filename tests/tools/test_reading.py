"""Before any rate stands what was read: columns, doubles, runs, empties, errors."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraguard_tools import Decisions, audit
from paraguard_tools.logs.repeats import find_same_texts
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder

REFUSAL, HELP = "I'm sorry, but I can't help with that.", "Sure: begin at the top."


def log_of(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def runs(n_texts=12, n_runs=5, seed=0, **more):
    """Each text several times, with decisions that chance decides."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"text {i}", f"c{i // 3}", run)
        for i in range(n_texts)
        for run in range(n_runs)
    ]
    frame = pd.DataFrame(rows, columns=["text", "cluster", "trial"])
    return frame.assign(
        decision=rng.choice(["refused", "answered"], len(frame)), **more
    )


def read(frame, path, **options):
    frame.to_csv(path, index=False)
    return Decisions.from_file(path, **options)


@pytest.mark.parametrize(
    ("names", "values", "expected"),
    [
        ("is_refusal", (1, 0), ("reject", "accept")),
        ("is_refused", ("True", "False"), ("reject", "accept")),
        ("refused", ("yes", "no"), ("reject", "accept")),
        ("complied", (1, 0), ("accept", "reject")),
        ("Compliance", ("COMPLETE", "EVASIVE"), ("accept", "reject")),
        ("compliance", ("DENIAL", "COMPLETE"), ("reject", "accept")),
        ("compliance", ("ERROR_TIMEOUT", "complete"), ("unparsed", "accept")),
        ("is_compliant", ("false", "true"), ("reject", "accept")),
        ("decision", ("2_full_refusal", "1_full_compliance"), ("reject", "accept")),
        ("refusal", ("refusal", "compliance"), ("reject", "accept")),
        ("rejected", ("0", "1"), ("accept", "reject")),
    ],
)
def test_names_and_words_for_decisions(tmp_path, names, values, expected):
    file = log_of(tmp_path / "log", text=["a", "b"], cluster="c", **{names: values})
    found = Decisions.from_file(file)
    assert tuple(found.rows["label"]) == expected
    assert found.reading.columns["decision"] == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["label", "Label", "verdict", "flagged"])
@pytest.mark.parametrize("answer", ["response", "completion", "output", "answer"])
def test_a_label_beside_answers_is_not_taken(tmp_path, name, answer):
    gold = {name: ["unsafe", "safe"], answer: [HELP, REFUSAL]}
    file = log_of(tmp_path / "log", text=["a", "b"], cluster="c", **gold)
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["label"].tolist() == ["accept", "reject"]
    assert any(f"--decision {name}" in line for line in found.reading.lines)
    taken = Decisions.from_file(file, {"decision": name})
    assert taken.rows["label"].tolist() == ["reject", "accept"]
    assert Decisions.from_file(file, {"answer": "none"}).labelled_by == ""


def test_a_gold_answer_is_not_the_system_s(tmp_path):
    file = log_of(tmp_path / "log", question=["a"], answer=["4"], response=[REFUSAL])
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["label"].tolist() == ["reject"]
    assert found.reading.columns["answer"] == "response"


def test_harmful_that_judges_answers(tmp_path):
    text = [f"t{i // 2}" for i in range(12)]
    harmful = [i % 2 for i in range(12)]
    both = {"response": [HELP] * 12, "harmful": harmful, "model": ["a", "b"] * 6}
    found = Decisions.from_file(
        log_of(tmp_path / "log", text=text, **both), labeller="cues"
    )
    assert not found.rows["harmful"].any()
    assert any("judges the answers" in line for line in found.reading.lines)
    said = [REFUSAL, HELP] * 6
    file = log_of(tmp_path / "log", text=range(12), response=said, harmful=harmful)
    lines = Decisions.from_file(file, labeller="cues").reading.lines
    assert any("probably judges" in line for line in lines)
    file = log_of(tmp_path / "log", text=range(12), response=said, harmful=0)
    lines = Decisions.from_file(file, labeller="cues").reading.lines
    assert any("--harmful none" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 7, 20, 60])
@pytest.mark.parametrize("with_trial", [True, False])
def test_doubles_of_a_resumed_log_count_once(tmp_path, n, with_trial):
    frame = runs(60, 1).drop(columns=[] if with_trial else ["trial"])
    resumed = pd.concat([frame, frame.head(n)])
    found = read(resumed, tmp_path / "log")
    assert len(found.rows) == 60 and found.reading.doubles == n
    assert (
        found.rows["label"].tolist()
        == read(frame, tmp_path / "o").rows["label"].tolist()
    )
    begin = "1 row is a double" if n == 1 else f"{n} rows are doubles"
    assert any(line.startswith(begin) for line in found.reading.lines)
    assert len(read(resumed, tmp_path / "log", same_text="repeats").rows) == 60 + n
    assert len(read(resumed, tmp_path / "log", same_text="wordings").rows) == 60 + n


@pytest.mark.parametrize("columns", [["trial"], [], ["id"], ["trial", "id"]])
@pytest.mark.parametrize("times", [2, 50])
def test_a_log_that_was_appended_to_itself(tmp_path, columns, times):
    frame = runs(id=[f"row{i}" for i in range(60)])
    frame = frame[["text", "cluster", "decision", *columns]]
    found = read(pd.concat([frame] * times), tmp_path / "log")
    assert len(found.rows) == 60 and found.repeated
    assert found.reading.doubles == 60 * (times - 1)


def test_a_log_without_texts_that_was_appended(tmp_path):
    frame = runs()[["cluster", "decision"]]
    found = read(pd.concat([frame] * 3), tmp_path / "log")
    assert len(found.rows) == 60 and found.reading.doubles == 120
    # wordings in turn, every cluster decided one way: an order, and no copies
    rows = {"cluster": [*"abcd"] * 5, "decision": ["refused", *["answered"] * 3] * 5}
    assert len(read(pd.DataFrame(rows), tmp_path / "log").rows) == 20


@pytest.mark.parametrize("name", ["trial", "epoch", "seed", "run", "sample", "attempt"])
def test_declared_runs_are_chance(tmp_path, name):
    found = read(runs().rename(columns={"trial": name}), tmp_path / "log")
    assert found.reading.doubles == 0 and len(found.rows) == 60
    assert found.rows["repeat"].tolist() == [0, 1, 2, 3, 4] * 12
    assert found.rows["wording"].nunique() == 12
    assert (found.reading.repeated_texts, found.reading.max_repeats) == (12, 5)


def test_undeclared_runs_are_chance_if_they_differ(tmp_path):
    found = read(runs().drop(columns="trial"), tmp_path / "log")
    assert len(found.rows) == 60 and found.reading.max_repeats == 5
    same = runs().drop(columns="trial").assign(decision="refused")
    assert len(read(same, tmp_path / "log").rows) == 12


def test_texts_of_two_prompts_are_two_wordings(tmp_path):
    frame = runs(12, 1).assign(text="a shared beginning", prompt_id=range(12))
    found = read(frame, tmp_path / "log")
    assert len(found.rows) == 12 and not found.repeated


def test_what_the_user_says_of_one_text_counts_whatever_its_ids_are(tmp_path):
    # 12 texts of 5 runs each; an id numbers the rows
    frame = runs().drop(columns="trial").assign(prompt_id=range(60))
    file = tmp_path / "log"
    assert not read(frame, file).repeated
    found = read(frame, file, same_text="repeats")
    assert len(found.rows) == 60 and found.rows["wording"].nunique() == 12
    assert sorted(found.rows["repeat"]) == sorted(list(range(5)) * 12)
    once = read(frame, file, same_text="doubles")
    kept = frame.drop_duplicates(["text", "decision"])
    assert len(once.rows) == len(kept)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), min_size=1))
def test_doubles_never_change_what_is_decided(pairs):
    """Every (text, outcome) that is there stays there, and repeats count from 0."""
    rows = pd.DataFrame(pairs, columns=["text", "outcome"]).assign(system="s")
    found = find_same_texts(rows, rows)
    kept = rows[found.kept]
    assert set(zip(kept["text"], kept["outcome"], strict=True)) == set(pairs)
    for _, own in kept.assign(n=found.repeat[found.kept]).groupby("text"):
        assert own["n"].tolist() == list(range(len(own)))


def batch(tmp_path, lost=()):
    asked, came = [], []
    for i in range(12):
        body = {"model": "m", "messages": [{"role": "user", "content": f"t{i}"}]}
        body["metadata"] = {"cluster": f"c{i // 4}"}
        asked.append({"custom_id": f"r{i}", "body": body})
        message = {"content": REFUSAL if i % 3 == 0 else HELP}
        made = {"model": "m", "choices": [{"message": message}]}
        if i not in lost:
            came.append({"custom_id": f"r{i}", "response": {"body": made}})
    for name, rows in (("in", asked), ("out", came)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
def test_requests_of_a_batch_without_a_result(tmp_path, command):
    batch(tmp_path, lost=(1, 5, 9))
    failed = [
        {"custom_id": "r1", "response": None, "error": {"code": "batch_expired"}},
        {"custom_id": "r5", "error": {"code": "content_filter", "message": "filtered"}},
    ]
    (tmp_path / "err").write_text("".join(json.dumps(row) + "\n" for row in failed))
    out, err = tmp_path / "out", tmp_path / "err"
    one = Decisions.from_file(out, requests=tmp_path / "in", labeller="cues")
    assert len(one.rows) == 12 and one.reading.missing == 3
    assert "3 of 12 requests have no result." in one.reading.lines
    both = Decisions.from_files([out, err], requests=tmp_path / "in", labeller="cues")
    counts = both.rows["label"].value_counts()
    assert (counts["blocked"], counts["unparsed"], len(both.rows)) == (1, 2, 12)
    assert both.reading.missing == 1 and set(both.rows["system"]) == {"m"}
    options = ["--input", str(tmp_path / "in"), "--labeller", "cues"]
    done = command(
        "audit", str(out), "--errors", str(err), *options, "--out", str(tmp_path)
    )
    assert "1 of 12 requests have no result" in " ".join(done.printed.split())


def test_results_of_another_batch_are_named(tmp_path):
    batch(tmp_path)
    text = (tmp_path / "in").read_text().replace('"r', '"other')
    (tmp_path / "in").write_text(text)
    found = Decisions.from_file(
        tmp_path / "out", {"cluster": "none"}, requests=tmp_path / "in", labeller="cues"
    )
    assert any("12 results answer no request" in one for one in found.reading.lines)


def test_empty_answers_are_counted_before_any_rate(tmp_path):
    def chat(content, reason="stop", **more):
        message = {"content": content, **more}
        return {
            "choices": [{"message": message, "finish_reason": reason}],
            "model": "m",
        }

    bodies = [
        chat(None, reasoning_content="Hm."),
        chat("", "length", reasoning="Hm."),
        chat("", "length"),
        chat(""),
        {
            "content": [{"type": "thinking", "thinking": "x"}],
            "stop_reason": "max_tokens",
        },
        {"candidates": [{"finishReason": "MAX_TOKENS"}]},
        {"candidates": [{"content": {"parts": [{"text": "x", "thought": True}]}}]},
        chat(HELP),
    ]
    rows = [{"prompt": f"t{i}", "response": one} for i, one in enumerate(bodies)]
    (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = Decisions.from_file(tmp_path / "log", labeller="cues")
    line = "7 answers are empty (4 with reasoning, 4 ended at the limit of tokens)."
    assert line in found.reading.lines


def test_one_row_without_a_model_ends_nothing(tmp_path):
    for models, expected in (("mm", "m"), ("mn", "unknown")):
        names = [None, *models]
        said = ["", HELP, REFUSAL]
        rows = {"text": range(3), "model": names, "response": said, "cluster": "c"}
        found = Decisions.from_file(log_of(tmp_path / "log", **rows), labeller="cues")
        assert found.rows["system"].tolist() == [expected, *models]
        assert found.reading.no_system == 1


def test_decisions_on_answers_that_never_came(tmp_path):
    rows = {
        "text": range(5),
        "is_refused": [0, 0, 1, 0, 0],
        "answer": ["[ERROR]", HELP, REFUSAL, "", HELP],
        "is_error": [True, False, False, False, False],
    }
    found = Decisions.from_file(log_of(tmp_path / "log", **rows))
    expected = ["unparsed", "accept", "reject", "unparsed", "accept"]
    assert found.rows["label"].tolist() == expected


def test_clusters_from_a_part_of_an_id(tmp_path):
    ids = [f"q{i}-{j}" for i in range(3) for j in range(2)]
    file = log_of(
        tmp_path / "log", question_id=ids, decision=["refused", "answered"] * 3
    )
    found = Decisions.from_file(file, {"cluster": r"question_id~-\d$"})
    assert found.rows["cluster"].tolist() == ["q0", "q0", "q1", "q1", "q2", "q2"]
    for pattern, said in (
        ("(", "no pattern"),
        ("z$", "matches no id"),
        (".*", "cuts off"),
    ):
        with pytest.raises(DataError, match=said):
            Decisions.from_file(file, {"cluster": f"question_id~{pattern}"})


@pytest.mark.slow
def test_files_side_by_side(tmp_path, command):
    for name in "abc":
        decided = ["refused" if name == "a" else "answered"] * 4
        log_of(
            tmp_path / name,
            id=range(4),
            text=[f"{name}{i}" for i in range(4)],
            decision=decided,
        )
    files = [str(tmp_path / name) for name in "abc"]
    found = Decisions.from_files(files, side_by_side=True)
    assert found.rows.groupby("cluster", observed=True).size().tolist() == [3] * 4
    done = command("audit", *files, "--side-by-side", "--out", str(tmp_path / "out"))
    assert "0.33" in done.printed and not done.error


def test_a_log_without_clusters_says_so(tmp_path, command, monkeypatch):
    def missing(*_):
        raise ModuleNotFoundError("No module named 'filelock'", name="filelock")

    monkeypatch.setattr(encoder, "encode_texts", missing)
    ids = [f"q{i // 3}-{i % 3}" for i in range(12)]
    rows = {"text": [f"t{i}" for i in range(12)], "qid": ids, "decision": "refused"}
    done = command("audit", str(log_of(tmp_path / "log", **rows)))
    assert "which requests ask the same" in done.error
    assert "--cluster 'qid~" in done.error and "[models]" in done.error


def test_rejects_add_refusals_and_change_no_known_word(tmp_path):
    words = ["Refused", "error", "blocked", "maybe", "no idea", "answered"]
    file = log_of(tmp_path / "log", text=range(6), decision=words)
    labels = Decisions.from_file(file, rejects=["maybe"]).rows["label"]
    assert labels.tolist() == [
        "reject",
        "unparsed",
        "blocked",
        "reject",
        "accept",
        "accept",
    ]


def test_phrases_of_a_product(tmp_path, command):
    (tmp_path / "phrases").write_text("# ours\nplease  ask our desk\n")
    said = ["Please ask OUR\ndesk about it.", HELP]
    file = log_of(tmp_path / "log", text=["a", "b"], response=said)
    found = Decisions.from_file(file, labeller="cues", refusal_phrases=["ask our desk"])
    assert found.rows["label"].tolist() == ["reject", "accept"]
    options = ["--labeller", "cues", "--refusal-phrases", str(tmp_path / "phrases")]
    table = pd.read_csv(io.StringIO(command("label", str(file), *options).printed))
    assert table["label"].tolist() == ["reject", "accept"]


def test_label_keeps_the_file_s_own_columns(tmp_path, command):
    content = f'id,response,label,kind,\n1,"{REFUSAL}",gold,x,\n2,{HELP},gold,y,\n'
    (tmp_path / "log").write_text(content)
    done = command("label", str(tmp_path / "log"), "--labeller", "cues")
    table = pd.read_csv(io.StringIO(done.printed), dtype=str)
    assert (
        table["id"].tolist() == ["1", "2"] and table["label"].tolist() == ["gold"] * 2
    )
    assert table["paraguard_label"].tolist() == ["reject", "accept"]


def test_systems_of_which_much_is_missing_are_named(tmp_path):
    rows = {
        "text": range(20),
        "decision": ["error"] * 6 + ["answered"] * 14,
        "system": ["bad"] * 10 + ["good"] * 10,
    }
    lines = Decisions.from_file(log_of(tmp_path / "log", **rows)).reading.lines
    assert any("bad 60 %, good 0 %" in line for line in lines)


@pytest.mark.parametrize(("same_text", "n_clusters"), [("repeats", 0), ("wordings", 2)])
def test_an_audit_counts_the_wordings_that_were_read(tmp_path, same_text, n_clusters):
    # Two requests, each six times in one text. As runs, each has one wording, and no
    # cluster has two; as wordings, both have six.
    log = log_of(
        tmp_path / "log.csv",
        text=["a"] * 6 + ["b"] * 6,
        cluster=["x"] * 6 + ["y"] * 6,
        decision=["refused", "answered"] * 6,
        trial=range(12),
    )
    found = audit(Decisions.from_file(log, same_text=same_text))
    assert found.table["n_clusters"].tolist() == [n_clusters]


# --- Conversations in which a filter stopped a turn

PLACEHOLDER = "[content filtered]"


def conversation_rows():
    """Ten conversations of three turns; a filter stops the first turn of four."""
    rows = []
    for i in range(10):
        first = PLACEHOLDER if i < 4 else HELP
        later = (
            [REFUSAL, REFUSAL] if i < 3 else [REFUSAL, HELP] if i == 3 else [HELP] * 2
        )
        for turn, answer in enumerate([first, *later]):
            rows.append((f"talk {i}", turn, f"what about {i} {turn}", answer))
    names = ["conversation_id", "turn", "text", "answer"]
    return pd.DataFrame(rows, columns=names).assign(
        cluster=[f"c{i % 6}" for i in range(30)]
    )


def test_refusals_after_a_stop_are_counted_apart(tmp_path):
    rows = conversation_rows()
    found = read(rows, tmp_path / "log.csv", labeller="cues")
    # The stops themselves are no such rows: two later turns of each of four talks are
    assert found.rows["after_stop"].sum() == 8
    assert not found.rows.loc[found.rows["label"] == "blocked", "after_stop"].any()
    (row,) = audit(found, n_resamples=20).table.to_dict("records")
    assert (row["n_after_stop"], row["n_after_stop_reject"]) == (8, 7)
    (said,) = audit(found, n_resamples=20).sentences
    # 11 of 30 are refused, 4 of them stopped
    assert "refused 7 of 8 requests, which count too; elsewhere 4 of 22." in said


def test_turns_are_ordered_by_their_numbers(tmp_path):
    rows = conversation_rows()
    mixed = rows.sample(frac=1, random_state=0)
    found = read(mixed, tmp_path / "log.csv", labeller="cues")
    assert found.rows["after_stop"].sum() == 8
    backwards = rows.drop(columns="turn")[::-1]
    found = read(backwards, tmp_path / "log.csv", labeller="cues")
    assert not found.rows["after_stop"].any(), "without numbers the file's order counts"


def test_a_stop_inside_the_messages_of_a_row_is_seen(tmp_path):
    def messages(first, **more):
        return [
            {"role": "user", "content": "how do I fold a crane"},
            {"role": "assistant", "content": first, **more},
            {"role": "user", "content": "and a boat"},
        ]

    stopped = [
        messages(PLACEHOLDER),
        messages("", finish_reason="content_filter"),
        messages([{"type": "text", "text": "Sorry, the model cannot answer this question."}]),
    ]  # fmt: skip
    others = [messages(HELP), messages(REFUSAL), messages("")]
    lines = [
        {"messages": one, "response": REFUSAL, "cluster": f"c{i}", "model": "m"}
        for i, one in enumerate(stopped + others)
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = Decisions.from_file(file, labeller="cues")
    assert found.rows["after_stop"].tolist() == [True] * 3 + [False] * 3


def test_a_column_of_runs_or_users_names_no_conversation(tmp_path):
    rows = conversation_rows().drop(columns="conversation_id")
    for values in ("one run", [f"row {i}" for i in range(30)]):
        found = read(
            rows.assign(session_id=values), tmp_path / "log.csv", labeller="cues"
        )
        assert "conversation" not in found.reading.columns
        assert not found.rows["after_stop"].any()
    named = Decisions.from_file(
        tmp_path / "log.csv", {"conversation": "session_id"}, labeller="cues"
    )
    assert named.reading.columns["conversation"] == "session_id"


def test_other_logs_say_nothing_of_conversations(tmp_path):
    found = read(runs(), tmp_path / "log.csv")
    table = audit(found, n_resamples=20).table
    assert "n_after_stop" not in table
    rows = conversation_rows().replace({"answer": {PLACEHOLDER: HELP}})
    (said,) = audit(
        read(rows, tmp_path / "log.csv", labeller="cues"), n_resamples=20
    ).sentences
    assert "conversation" not in said
