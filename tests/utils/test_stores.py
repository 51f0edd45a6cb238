import contextlib
import errno
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import Killed
from hypothesis import example, given
from hypothesis import strategies as st

from paraguard_utils import __version__, paths, registry, stores
from paraguard_utils.errors import Changed, DataError, Missing
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
    assert store.path("corpus", "x").is_relative_to(paths.DATA)
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


@pytest.fixture
def table(results):
    """A table of six rows in a live store."""
    rows = pd.DataFrame({"system": list("abcdef"), "dr": [i / 10 for i in range(6)]})
    return stores.Store("mine").write("tables", "t", frame=rows, meta={"inputs": {}})


def rows_of(path):
    stores.check_content(path)  # what was read before is not looked at again
    return len(stores.read_file(path, "tables"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b'{"inputs": {"corp', "cannot be read"),
        ("{'caf\xe9'}".encode("latin-1"), "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1, 2]", "is no JSON object"),
        (b"7", "is no JSON object"),
        (b"null", "is no JSON object"),
        (b'{"inputs": [1]}', "has a 'inputs' that is no JSON object"),
    ],
)
def test_a_damaged_meta_file_is_one_line_with_a_remedy(table, content, problem):
    stores.meta_path(table).write_bytes(content)
    for read in (stores.read_meta, rows_of):
        with pytest.raises(DataError) as caught:
            read(table)
        line = str(caught.value)
        assert f"tables/t.csv.meta.json {problem}" in line and "\n" not in line
        assert "remove it and run the notebook of that table" in line
    stores.write_file(table, pd.DataFrame({"a": [1]}), "tables", {})
    assert rows_of(table) == 1, "what is written anew replaces it"


def test_a_meta_file_that_is_a_folder_or_lacks_a_value_is_named(table):
    with pytest.raises(DataError, match=r"t\.csv\.meta\.json has no 'parameters'"):
        stores.read_meta(table)["parameters"]
    with pytest.raises(DataError, match=r"t\.csv\.meta\.json has no 'labels'"):
        stores.read_meta(table)["inputs"]["labels"]
    stores.meta_path(table).unlink()
    assert stores.read_meta(table) == {}
    with pytest.raises(DataError, match=r"t\.csv\.meta\.json is missing"):
        stores.read_meta(table)["inputs"]
    stores.meta_path(table).mkdir()
    with pytest.raises(DataError, match=r"t\.csv\.meta\.json cannot be read"):
        stores.read_meta(table)


def changed(text):
    return text.replace("0.3", "0.9", 1)


def cut(text):
    return "".join(text.splitlines(keepends=True)[:4])


def without_a_column(text):
    return "".join(f"{line.partition(',')[0]}\n" for line in text.splitlines())


@pytest.mark.parametrize("damage", [changed, cut, without_a_column])
def test_a_table_that_was_changed_by_hand_is_named_until_its_digest_is_deleted(
    table, damage
):
    before = table.read_text()
    table.write_text(damage(before))
    with pytest.raises(Changed) as caught:
        rows_of(table)
    line = str(caught.value)
    assert "mine/tables/t.csv was cut or changed" in line and "\n" not in line
    assert f'delete the line "{stores.CONTENT}"' in line and "t.csv.meta.json" in line
    meta = stores.meta_path(table)
    lines = meta.read_text().splitlines(keepends=True)
    meta.write_text("".join(line for line in lines if stores.CONTENT not in line))
    assert rows_of(table) == len(damage(before).splitlines()) - 1


def test_what_git_does_to_line_ends_and_what_has_no_digest_is_no_change(table):
    text = table.read_bytes()
    table.write_bytes(text.replace(b"\n", b"\r\n"))
    assert rows_of(table) == 6
    table.write_bytes(text.replace(b"0.3", b"0.9"))
    stores.write_meta(table, {"inputs": {}})  # as an earlier version did
    assert rows_of(table) == 6
    stores.meta_path(table).unlink()
    assert rows_of(table) == 6


def test_a_text_with_two_line_ends_is_as_it_was_written(table):
    frame = pd.DataFrame({"text": ["one\r\ntwo", "three\nfour"]})
    stores.write_file(table, frame, "tables", {})
    assert rows_of(table) == 2


@pytest.mark.slow
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("first", range(4))
def test_two_writes_killed_at_any_step_leave_a_file_that_is_read(
    table, monkeypatch, first, second
):
    """Three moves: a meta file that allows both contents, the file, the meta file."""
    real = Path.replace

    def write(rows, moves):
        left = iter(range(moves))

        def replace(self, target):
            if next(left, None) is None:
                raise Killed
            return real(self, target)

        frame = pd.DataFrame({"a": range(rows)})
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(Path, "replace", replace)
            stores.write_file(table, frame, "tables", {"inputs": {}})

    write(2, first)
    assert rows_of(table) == (2 if first > 1 else 6)
    write(3, second)
    assert rows_of(table) == (3 if second > 1 else 2 if first > 1 else 6)
    write(4, 3)
    assert rows_of(table) == 4
    meta = stores.read_meta(table)
    assert meta == {
        "package": __version__,
        "inputs": {},
        stores.CONTENT: stores.digest_content(table),
    }


def test_a_reader_beside_a_writer_looks_again(table, monkeypatch):
    real = stores.digest_content
    seen = iter(["that of the file before", real(table)])
    monkeypatch.setattr(stores, "digest_content", lambda path: next(seen))
    assert len(stores.read_file(table, "tables")) == 6


def test_every_recorded_file_is_as_its_meta_file_says():
    files = [
        path
        for end in ("csv", "parquet")
        for path in paths.DATA.rglob(f"*.{end}")
        if stores.meta_path(path).is_file()
    ]
    assert len(files) > 500
    for path in files:
        assert stores.CONTENT in stores.read_meta(path), path
        stores.check_content(path)


def test_a_recorded_file_is_restored_from_git(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "DATA", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    path = tmp_path / "labels" / "c" / "s.csv"
    stores.write_file(path, pd.DataFrame({"a": [1, 2]}), "any", {})
    path.write_text("a\n1\n")
    with pytest.raises(Changed, match=r"git checkout -- labels/c/s\.csv\)"):
        stores.read_file(path, "any")
    path.write_text("")
    with pytest.raises(DataError, match=r"git checkout -- labels/c/s\.csv\)"):
        stores.read_file(path, "any")
    stores.meta_path(path).write_text("{")
    with pytest.raises(DataError, match=r"git checkout -- labels/c/s\.csv\.meta"):
        stores.read_meta(path)


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


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_lock_that_cannot_be_held_is_named(tmp_path, kind):
    lock = tmp_path / "x.csv.lock"
    if kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(tmp_path / "nowhere" / "else")
    with (
        pytest.raises(DataError, match=r"x\.csv\.lock cannot be locked \(.*remove it"),
        Parts(tmp_path / "x.csv", "tables"),
    ):
        pass


def test_a_part_that_no_run_wrote_is_named_and_nothing_is_locked(tmp_path):
    parts = Parts(tmp_path / "x.csv", "tables")
    parts.folder.mkdir()
    for odd in ("part-abc.parquet", "part-.parquet", "part-000001 (copy).parquet"):
        file = parts.folder / odd
        file.write_bytes(b"")
        with pytest.raises(DataError, match=f"{re.escape(odd)} .*move it out"), parts:
            pass
        file.unlink()
    (parts.folder / "part-000007.parquet").mkdir()
    with pytest.raises(DataError, match=r"part-000007\.parquet is no part"), parts:
        pass
    (parts.folder / "part-000007.parquet").rmdir()
    (parts.folder / "part-old.txt").write_text("notes")
    with parts:
        add(parts, 1)
        assert read(parts) == [[1]]


def test_what_was_changed_by_hand_is_not_set_aside_but_named(tmp_path):
    path = tmp_path / "x.csv"
    stores.write_file(path, pd.DataFrame({"number": [1, 2]}), "tables", {})
    path.write_text("number\n1\n")
    with Parts(path, "tables") as parts, pytest.raises(Changed):
        parts.read(path)
    stores.meta_path(path).write_text("{")
    with Parts(path, "tables") as parts, pytest.raises(DataError, match=r"meta\.json"):
        parts.read(path)
    assert path.is_file() and not list(tmp_path.glob("*.corrupt"))


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
