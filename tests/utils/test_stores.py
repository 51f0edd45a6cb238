import errno

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paraguard_utils import paths, registry, stores
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import encoder
from paraguard_utils.parts import Parts
from paraguard_utils.schemas import check_schema
from paraguard_utils.text import CONTROL_CHARACTERS


def corpus(**changes):
    row = {
        "prompt_id": "a-0",
        "cluster_id": "a",
        "variant": 0,
        "strategy": "seed",
        "text": "null",
        "source": "test",
        "category": "hate",
        "topical": "yes",
        "similarity": 1.0,
        "overlap": 1.0,
        "risk": 0.5,
    }
    return pd.DataFrame(
        [row, row | {"prompt_id": "a-1", "variant": 1, "text": "NA"} | changes]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "  "}, r"x.csv: row 3 \(a-1\), column text: .*is blank"),
        ({"text": None}, r"x.csv: row 3 \(a-1\), column text: is blank"),
        ({"text": "null"}, r"x.csv: row \d \(a-\d\), column text: "),
        ({"risk": 1.2}, r"x.csv: row 3 \(a-1\), column risk: 1.2"),
        (
            {"strategy": "lexcial"},
            (
                r"x.csv: row 3 \(a-1\), column strategy: 'lexcial' \(is not one of"
                r" seed, lexical, "
            ),
        ),
    ],
)
def test_errors_name_file_row_and_column(changes, message):
    with pytest.raises(DataError, match=message):
        check_schema(corpus(**changes), "corpus", "x.csv")


def test_columns_and_emptiness():
    with pytest.raises(DataError, match="column 'risk' is missing"):
        check_schema(corpus().drop(columns="risk"), "corpus", "x.csv")
    with pytest.raises(DataError, match="column 'riks' is not part"):
        check_schema(corpus().assign(riks=1), "corpus", "x.csv")
    with pytest.raises(DataError, match="no rows"):
        check_schema(corpus().head(0), "corpus", "x.csv")


def test_words_that_look_missing_survive(results):
    store = stores.Store("test")
    store.write("corpus", "c", frame=corpus(), meta={})
    assert store.read("corpus", "c")["text"].tolist() == ["null", "NA"]


_any_text = st.text(st.characters(codec="utf-8"), min_size=1)


@pytest.mark.slow
@given(
    _any_text.filter(lambda text: text.strip() and not CONTROL_CHARACTERS.search(text))
)
def test_any_text_survives_a_csv(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    frame = corpus(text=text + "x")
    stores.write_file(path, frame, "corpus", {})
    assert stores.read_file(path, "corpus")["text"].tolist() == frame["text"].tolist()


@pytest.mark.slow
@given(_any_text)
@example("carriage\rreturn")
@example("nul\x00 and escape\x1b")
def test_any_answer_survives_as_a_label(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    traces = pd.DataFrame(
        {"prompt_id": ["a", "b"], "response": [text, "yes"], "finish_reason": "stop"}
    )
    corpus = pd.DataFrame({"prompt_id": ["a", "b"], "text": ["Why?", "How?"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            encoder, "encode_texts", lambda texts: np.zeros((len(texts), 384))
        )
        labels = labelling.label_answers(traces, corpus)
    stores.write_file(path, labels, "labels", {})
    read = stores.read_file(path, "labels")
    assert read["response"].tolist() == [CONTROL_CHARACTERS.sub("\ufffd", text), "yes"]
    assert read["label"].tolist() == labels["label"].tolist()


@pytest.mark.parametrize("character", ["\r", "\x00", "\x1b"])
def test_control_characters_in_prompts_are_named(character):
    with pytest.raises(
        DataError, match=r"row 3 \(a-1\), column text: .*has a control character"
    ):
        check_schema(corpus(text=f"a{character}b"), "corpus", "x.csv")


def test_a_wrong_encoding_is_one_clear_error(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(
        "seed_id,text,source,category\n1,caf\xe9,x,hate\n".encode("latin-1")
    )
    with pytest.raises(DataError, match="row 2 is not UTF-8"):
        stores.read_file(path, "seeds")


def test_a_semicolon_file_says_what_to_save(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("seed_id;text;source;category\n1;a, b;x;hate\n2;c, d, e;x;hate\n")
    with pytest.raises(DataError, match="save the file as comma-separated CSV"):
        stores.read_file(path, "seeds")


def test_recorded_is_read_only_and_never_writes_to_tracked_files(results):
    store = stores.Store("recorded")
    assert store.reads == paths.DATA
    assert store.output_path("tables", "x").is_relative_to(results)
    with pytest.raises(Missing, match="read-only"):
        store.read("traces", "paraguard_mini", "nobody")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", "/etc/x", ".x", "a\\b", "x" * 201]
)
def test_a_name_never_leaves_its_folder(name, results):
    for store in (stores.Store("recorded"), stores.Store("mine")):
        for use in (store.path, store.has, store.read, store.output_path):
            with pytest.raises(DataError, match="is no name of a file in a store"):
                use("labels", "paraguard_mini", name)
        with pytest.raises(DataError, match="is no name of a file in a store"):
            stores.CorpusFiles(store, name).has("corpus")
    assert not results.exists()


def test_a_live_store_takes_the_recorded_corpus_but_no_recorded_trace(results, capsys):
    store = stores.Store("mine")
    with pytest.raises(Missing, match="run 01_corpus_building"):
        store.read("corpus", "paraguard_mini")
    assert len(store.read_earlier("corpus", "paraguard_mini"))
    assert "the recorded one is used" in capsys.readouterr().err
    with pytest.raises(Missing, match="run 02_querying"):
        store.read("traces", "paraguard_mini", "smollm2-135m-instruct-q4_1--safety")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.csv"
    stores.write_file(path, pd.DataFrame({"a": [1]}), "tables", {})

    def fails(part):
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        DataError, match=r"x\.csv cannot be written \(No space left on device\)"
    ):
        stores.write_atomically(path, fails)
    assert path.read_text() == "a\n1\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "x.csv",
        "x.csv.meta.json",
    ]


def add(parts, *numbers):
    for number in numbers:
        parts.add(pd.DataFrame({"number": [number]}))


def read(parts, *before):
    return [frame["number"].tolist() for frame in parts.read(*before)]


def test_parts_are_numbered_kept_and_cleared(tmp_path):
    with Parts(tmp_path / "x.csv", "tables") as parts:
        assert read(parts) == [] and parts.files() == []
        add(parts, 1, 2)
    with Parts(tmp_path / "x.csv", "tables") as parts:
        add(parts, 3)
        assert [file.name for file in parts.files()] == [
            f"part-00000{i}.parquet" for i in range(3)
        ]
        stores.write_file(parts.file, pd.DataFrame({"number": [0]}), "tables", {})
        assert read(parts, parts.file, tmp_path / "not there.csv") == [
            [0],
            [1],
            [2],
            [3],
        ]
        parts.clear()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "x.csv",
        "x.csv.lock",
        "x.csv.meta.json",
    ]


def test_a_part_that_cannot_be_read_is_named_and_set_aside_and_its_number_is_not_given_again(
    tmp_path, capsys
):
    with Parts(tmp_path / "x.csv", "tables") as parts:
        add(parts, 1, 2)
        last = parts.files()[-1]
        last.write_bytes(last.read_bytes()[:-10])
        assert read(parts) == [[1]]
        assert f"{last.name}: cannot be read" in capsys.readouterr().err
        add(parts, 3)
        assert read(parts) == [[1], [3]] and capsys.readouterr().err == ""
        parts.clear()
        assert [file.name for file in parts.folder.iterdir()] == [
            f"{last.name}.corrupt"
        ]


def test_parts_that_do_not_fit_their_schema_are_set_aside(tmp_path, capsys):
    with Parts(tmp_path / "x.parquet", "traces") as parts:
        add(parts, 1)
        assert (
            parts.read() == []
            and "column 'number' is not part" in capsys.readouterr().err
        )


def test_one_process_writes_at_a_time_and_what_a_killed_one_left_half_written_is_removed(
    tmp_path,
):
    with Parts(tmp_path / "x.csv", "tables") as parts:
        add(parts, 1)
        with pytest.raises(
            DataError, match=r"x\.csv is being written by another process"
        ):
            Parts(parts.file, "tables").__enter__()
    leftovers = [
        tmp_path / ".x.csv.abc.tmp",
        parts.folder / ".part-000001.parquet.abc.tmp",
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    with Parts(tmp_path / "x.csv", "tables") as parts:
        assert not any(leftover.exists() for leftover in leftovers) and read(parts) == [
            [1]
        ]


def test_the_list_of_systems_is_read_once_for_each_folder(tmp_path, monkeypatch):
    known = registry.published_systems("chat")
    monkeypatch.setattr(stores, "read_file", lambda *_: pytest.fail("read again"))
    assert registry.display_titles([known.index[0], "mine"]) == [
        known["title"].iloc[0],
        "mine",
    ]
    assert registry.display_titles(["smollm2-135m-instruct-q4_1"]) == ["SmolLM2-135M"]
    own = registry.published_systems("chat")
    own["title"] = "changed by a caller"
    assert registry.published_systems("chat").equals(known)
    monkeypatch.undo()
    monkeypatch.setattr(paths, "DATA", tmp_path)
    with pytest.raises(DataError, match="there is no such file"):
        registry.display_titles(["mine"])
