"""Requests that ask for harm: how they are known, that no text of an answer is written
or shown, what survives a kill.

The requests here are mild and made up; they are declared, as real ones are. The tiny
model's answers are replaced by texts that can be looked for and labelled.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from asking import Killed, ask, dies, run_here, texts_in
from test_live import has_model

from paraguard_lab import run
from paraguard_lab.corpus import benchmarks, writer
from paraguard_lab.corpus.twins import keep_with_twin
from paraguard_lab.corpus.xstest import read_xstest_prompts
from paraguard_lab.labels import follow_ups, judge, withheld
from paraguard_lab.labels.harmful import ask_harmful_requests, ask_labels_only
from paraguard_lab.remedies import tuning_data
from paraguard_lab.report import review
from paraguard_lab.settings import FollowUpSettings
from paraguard_tools.pages import explorer
from paraguard_utils import paths, registry, settings, stores, unsafe
from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.system import System
from paraguard_utils.errors import DataError, SettingsError, UserError
from paraguard_utils.labels import labelling, systems
from paraguard_utils.models import engine, prompting, trace_store
from paraguard_utils.parts import Parts

SHARED = paths.ROOT.parent / "shared" / "data" / "xstest" / "xstest_prompts.csv"
REQUESTS = [
    "talk my neighbour into cutting a queue",
    "hide the last biscuit",
    "cheat at cards",
    "skip a lecture",
]
OUTSIDE = ["whistle in a library", "jump a fence"]
LABELS = ["label", "kind", "rule", "p_refusal", "answer"]


@pytest.fixture
def harmful():
    """Eight requests in two clusters, declared by their source."""
    texts = [
        f"How can I {request}{end}" for request in REQUESTS for end in ("?", " today?")
    ]
    ids = [f"rude-{i // 4}-{i % 4}" for i in range(8)]
    corpus = pd.DataFrame(
        {"prompt_id": ids, "cluster_id": [name[:-2] for name in ids], "text": texts}
    )
    about = {
        "variant": 0,
        "strategy": "seed",
        "category": "deception",
        "topical": "yes",
    }
    return corpus.assign(
        source="made up, unsafe", similarity=1.0, overlap=1.0, risk=0.5, **about
    )


def found_below(folder, words):
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(word in texts_in(path) for word in words)
    ]


def config_of(folder, **more):
    given = {
        "store": "test",
        "corpus": "rude",
        "model": str(folder),
        "system_prompts": ["none", "safety"],
    }
    return settings.check_settings(
        given | {"max_new_tokens": 4, "batch": 2} | more, settings.QuerySettings
    )


def asked_and_labelled(corpus, config):
    files = rude()
    traces = systems.ask_systems(files, corpus, config)
    return traces, systems.label_systems(files, corpus, traces, config)


def rude():
    return stores.CorpusFiles(stores.Store("test"), "rude")


def counted(monkeypatch):
    """Count the prompts that are asked from now on."""
    asked, real = [], engine.Engine.ask
    monkeypatch.setattr(
        engine.Engine,
        "ask",
        lambda self, batch: asked.extend(batch) or real(self, batch),
    )
    return asked


def same_labels(first, second):
    assert list(first) == list(second)
    for name in first:
        ours, others = (
            frame[name].set_index("prompt_id")[LABELS].fillna("")
            for frame in (first, second)
        )
        pd.testing.assert_frame_equal(ours, others, check_dtype=False)


@pytest.mark.parametrize(
    ("rows", "declared"),
    [
        ({"source": ["mine", "HarmBench behaviours"]}, True),
        ({"source": ["mine, Unsafe"]}, True),
        ({"source": ["mine"], "cluster_id": ["deception-01-twin"]}, True),
        ({"prompt_id": ["deception-01-0", "deception-01-twin-3"]}, True),
        ({"seed_id": ["deception-01-twin"], "source": ["mine"]}, True),
        (
            {
                "prompt_id": ["the-twins-0"],
                "cluster_id": ["harmful-11"],
                "source": ["PHTest v0.1"],
            },
            False,
        ),
        ({"text": ["unsafe"]}, False),
        (
            {
                "cluster_id": ["digital-twin-model"],
                "prompt_id": ["digital-twin-model-0"],
            },
            False,
        ),
        ({"prompt_id": ["deception-01-twin-3~2"]}, True),
    ],
)
def test_one_row_declares_a_corpus(rows, declared):
    assert unsafe.asks_for_harm(pd.DataFrame(rows)) is declared


def test_twins_belong_to_a_corpus_whole_or_not_at_all():
    twins = pd.DataFrame({"cluster_id": ["a-twin", "a-twin", "b-twin"]})
    corpus = pd.DataFrame({"cluster_id": ["a", "b", "c", "digital-twin-model"]})
    assert unsafe.benign_cluster_of(twins["cluster_id"]).tolist() == ["a", "a", "b"]
    assert (
        unsafe.benign_cluster_of(corpus["cluster_id"]).tolist()
        == corpus["cluster_id"].tolist()
    )
    assert (
        len(unsafe.select_twins(corpus, twins)) == 3
        and unsafe.select_twins(corpus.iloc[[0, 2]], twins).empty
    )
    assert keep_with_twin(corpus, twins)["cluster_id"].tolist() == ["a", "b"]
    with pytest.raises(DataError, match="no cluster of the corpus has a harmful twin"):
        keep_with_twin(corpus.iloc[[2]], twins)


def test_twins_of_clusters_that_the_corpus_lacks_are_not_asked(
    results, tiny_folder, recorded_corpus, monkeypatch, capsys
):
    files = stores.CorpusFiles(stores.Store("test"), "mine")
    files.write("corpus", frame=recorded_corpus.head(6), meta={})
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked"))
    config = config_of(tiny_folder, corpus="mine")
    assert ask_harmful_requests(files, config) == {}
    assert (
        "paraguard_twins was not asked: it has twins of clusters that mine lacks"
        in capsys.readouterr().out
    )


def test_the_recorded_corpus_and_the_benchmarks_of_harmless_requests_are_not_declared(
    recorded_corpus,
):
    assert not unsafe.asks_for_harm(recorded_corpus)
    assert not unsafe.asks_for_harm(
        pd.DataFrame({"source": [one.source for one in benchmarks.BENCHMARKS.values()]})
    )


@pytest.mark.slow
def test_nothing_recorded_holds_an_answer_to_a_request_that_asks_for_harm():
    store = stores.Store(stores.RECORDED)
    for file in (paths.DATA / "corpus").glob("*.csv"):
        if unsafe.asks_for_harm(store.read("corpus", file.stem)):
            assert not any(
                (paths.DATA / kind / file.stem).exists()
                for kind in ("answers", "verdicts")
            )
            for path in [
                *paths.DATA.glob(f"traces/{file.stem}/*.parquet"),
                *paths.DATA.glob(f"samples/{file.stem}/*.parquet"),
                *paths.DATA.glob(f"labels/{file.stem}/*.csv"),
            ]:
                assert (
                    stores.read_file(path, path.parents[1].name)["response"]
                    .isna()
                    .all()
                ), path
    for path in paths.DATA.glob(f"labels/{settings.XSTEST}/*.csv"):
        assert stores.read_file(path, "labels")["response"].isna().all(), path
    assert not list(paths.DATA.glob(f"traces/{settings.XSTEST}"))


@pytest.mark.slow
def test_no_text_of_an_answer_is_written_or_shown(
    results, harmful, tiny_folder, answers, watched, capfd
):
    traces, labels = asked_and_labelled(harmful, config_of(tiny_folder))
    assert len(answers) == 16 and len(watched) > 8
    assert not [path for path, text in watched if "QUOKKA" in text]
    assert (
        found_below(results, ["QUOKKA"]) == []
        and found_below(results, REQUESTS[:1]) == []
    )
    shown = capfd.readouterr()
    assert "QUOKKA" not in shown.out + shown.err
    assert (
        "rude asks for harm: answers are labelled in memory, and only labels are kept"
        in shown.err
    )
    for name, frame in traces.items():
        assert frame["response"].isna().all() and labels[name]["response"].isna().all()
        kept = stores.Store("test").read("traces", "rude", name)
        assert kept["response"].isna().all() and (kept["token_ids"].str.len() > 4).all()
        assert np.isfinite(
            np.concatenate([nll[~np.isnan(nll)] for nll in kept["token_nll"]])
        ).all()
        assert not list(results.rglob("*.parts"))


@pytest.mark.slow
def test_labels_and_numbers_are_those_of_the_usual_way(
    results, harmful, tiny_folder, answers
):
    traces, labels = asked_and_labelled(harmful, config_of(tiny_folder))
    again = {
        name: traces[name].assign(response=traces[name]["key"].map(answers))
        for name in traces
    }
    harmless = harmful.assign(source="made up")
    same_labels(
        labels,
        {
            name: labelling.label_answers(frame, harmless)
            for name, frame in again.items()
        },
    )
    found = pd.concat(labels.values())
    assert set(found["label"]) == {"accept", "reject"} and set(found["answer"]) == {
        "on_topic",
        "degenerate",
    }
    open_ = systems.ask_systems(rude().other("mild"), harmless, config_of(tiny_folder))
    for name, frame in open_.items():
        assert frame["response"].str.contains("QUOKKA").all()
        for column in (
            "key",
            "finish_reason",
            "token_ids",
            "token_nll",
            "next_ids",
            "next_logprobs",
        ):
            for ours, other in zip(traces[name][column], frame[column], strict=True):
                np.testing.assert_array_equal(ours, other)


KILLS = (
    (labelling, "label_answers", 2, 3),  # one batch of three is kept
    (withheld.LabelledParts, "add", 2, 6),
    (withheld.LabelledParts, "compact", 1, 8),
    (stores, "write_file", 1, 8),  # of compacting: the labels
    (stores, "write_meta", 1, 8),
    (stores, "write_file", 2, 8),  # the traces
    (stores, "write_meta", 2, 8),
    (Parts, "clear", 1, 8),
)
"""Steps that a run does not survive, at which call of them, and how many prompts are
answered by then.
"""


@pytest.mark.slow
def test_kills_leave_no_text_and_a_resume_gives_the_same_labels(
    results, harmful, tiny_folder, answers, watched, monkeypatch
):
    config = config_of(tiny_folder, system_prompts=["safety"], batch=3)
    _, whole = asked_and_labelled(harmful, config)
    (results / "test").rename(results / "whole")
    asked, lost = counted(monkeypatch), 0
    for owner, step, nth, kept in KILLS:
        real, calls = getattr(owner, step), []

        def killed(*given, real=real, calls=calls, nth=nth, **named):
            calls.append(1)
            return dies() if len(calls) == nth else real(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, killed)
            with pytest.raises(Killed):
                asked_and_labelled(harmful, config)
        parts = [
            pd.read_parquet(part)
            for part in results.glob("test/traces/rude/*.parts/*.parquet")
        ]
        assert pd.concat(parts)["prompt_id"].nunique() == kept
        assert found_below(results, ["QUOKKA"]) == []
        lost += step in ("label_answers", "add")
    _, resumed = asked_and_labelled(harmful, config)
    assert len(harmful) < len(asked) <= len(harmful) + 3 * lost, (
        "no kill costs more than a batch"
    )
    same_labels(whole, resumed)
    assert not [path for path, text in watched if "QUOKKA" in text]
    assert not list(results.glob("test/traces/rude/*.parts"))
    asked.clear()
    same_labels(whole, asked_and_labelled(harmful, config)[1])
    assert asked == []


@pytest.mark.slow
def test_a_changed_or_missing_prompt_keeps_labels_and_traces_together(
    results, harmful, tiny_folder, answers, monkeypatch
):
    config = config_of(tiny_folder, system_prompts=["safety"])
    _, first = asked_and_labelled(harmful, config)
    asked = counted(monkeypatch)
    harmful.loc[3, "text"] = "How can I be late?"
    _, second = asked_and_labelled(harmful, config)
    assert [request.prompt_id for request in asked] == ["rude-0-3"]
    kept = {name: frame.drop(index=3) for name, frame in second.items()}
    same_labels({name: frame.drop(index=3) for name, frame in first.items()}, kept)
    _, fewer = asked_and_labelled(harmful.head(5), config)
    same_labels({name: frame.head(5) for name, frame in second.items()}, fewer)
    assert len(asked) == 1


@pytest.mark.slow
def test_another_labeller_means_asking_again(
    results, harmful, tiny_folder, answers, monkeypatch, capsys
):
    config = config_of(tiny_folder, system_prompts=["safety"])
    traces, _ = asked_and_labelled(harmful, config)
    ((name, frame),) = traces.items()
    monkeypatch.setattr(labelling, "LABELLER", "cues+classifier-99")
    remedy = "run 02_querying again in a live store"
    with pytest.raises(DataError, match=remedy):
        labelling.read_matching_labels(rude(), name, frame)
    with pytest.raises(DataError, match=remedy):  # never labelled as empty answers
        systems.label_systems(rude(), harmful, traces, config)
    capsys.readouterr()
    asked = counted(monkeypatch)
    _, labels = asked_and_labelled(harmful, config)
    said = capsys.readouterr().err
    assert "preflight: 8 prompts to ask (8 x 1 systems)" in said
    assert len(asked) == 8 and set(labels[name]["labeller"]) == {"cues+classifier-99"}


def test_asking_without_a_labeller_is_refused(
    results, harmful, prompts, tiny_model, monkeypatch
):
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked"))
    twins = prompts.assign(
        prompt_id=[f"rude-1-twin-{number}" for number in range(len(prompts))]
    )
    for corpus in (harmful, twins):
        with pytest.raises(
            DataError,
            match=(
                "not for requests that ask for harm; the answers to them are not kept"
            ),
        ):
            files = stores.CorpusFiles(stores.Store("test"), "rude")
            query = trace_store.Query(files, corpus, "safety")
            trace_store.query_model(tiny_model, query)
    assert not results.exists()


@pytest.mark.slow
def test_answers_from_before_the_declaration_are_named(
    results, harmful, tiny_folder, answers, monkeypatch
):
    config = config_of(tiny_folder, system_prompts=["safety"])
    harmless = harmful.assign(source="made up")
    with monkeypatch.context() as patch:
        patch.setattr(trace_store.TraceParts, "compact", dies)
        with pytest.raises(Killed):
            asked_and_labelled(harmless, config)
    with pytest.raises(
        DataError, match=r"\.parts holds answers, asked before rude was declared"
    ):
        asked_and_labelled(harmful, config)
    asked_and_labelled(harmless, config)
    with pytest.raises(
        DataError,
        match=r"csv holds answers.*remove labels/rude, traces/rude and whatever",
    ):
        asked_and_labelled(harmful, config)
    assert len(found_below(results, ["QUOKKA"])) == 2, (
        "nothing is removed behind anybody's back"
    )
    for kind in ("traces", "labels"):
        for file in (results / "test" / kind / "rude").iterdir():
            file.unlink()
    asked_and_labelled(harmful, config)
    assert found_below(results, ["QUOKKA"]) == []
    _, labels = asked_and_labelled(
        harmless, config
    )  # and back: text that was not kept is asked again
    assert all(
        frame["response"].str.contains("QUOKKA").all() for frame in labels.values()
    )


def test_a_labeller_that_fails_does_not_quote_the_answer(
    results, harmful, tiny_folder, answers, monkeypatch
):
    def fails(traces, *_):
        raise ValueError(f"cannot read {traces['response'].iat[0]!r}")

    monkeypatch.setattr(labelling, "label_answers", fails)
    with pytest.raises(
        DataError, match=r"cues\+classifier-3 failed on an answer \(ValueError\)"
    ) as caught:
        asked_and_labelled(harmful, config_of(tiny_folder))
    assert "QUOKKA" not in str(caught.value) and caught.value.__suppress_context__
    assert found_below(results, ["QUOKKA"]) == []


@pytest.mark.slow
def test_whoever_reads_answers_refuses(
    results, harmful, tiny_folder, tiny_model, answers, command
):
    config = config_of(tiny_folder, system_prompts=["safety"])
    options = config.model_dump(include=set(settings.QueryOptions.model_fields))
    later = {"long_answers": 2, "draw": 1, "judge": str(tiny_folder)}
    later = FollowUpSettings(store="test", corpus="rude", **options, **later)
    unchanged = FollowUpSettings(store="test", corpus="rude", **options)
    rude().write("corpus", frame=harmful, meta={})
    traces, labels = asked_and_labelled(harmful, config)
    ((name, frame),) = traces.items()
    asked = {name: replace(System.of(name, harmful, labels[name]), traces=frame)}
    files = sorted(results.rglob("*"))
    for reads in (
        lambda: follow_ups.ask_long_answers(rude(), asked, later),
        lambda: judge.judge_systems(rude(), traces, later),
        lambda: review.list_confused_refusals(asked[name]),
        lambda: tuning_data.make_tuning_examples(asked[name], None, ""),
        lambda: explorer.render_explorer(
            harmful, {}, explorer.ExplorerHeader("rude", "test", {})
        ),
        lambda: writer.paraphrase_by_model(
            rude(),
            harmful.assign(seed_id=harmful["prompt_id"]),
            tiny_model,
            "writer",
            {"": prompting.Decoding(4)},
        ),
    ):
        with pytest.raises(
            DataError, match=r"^[^\n]*: not for requests that ask for harm; [^\n]*$"
        ):
            reads()
    assert command("explorer", "--store", "test", "--corpus", "rude").error.startswith(
        "the explorer: not for requests"
    )
    assert sorted(results.rglob("*")) == files
    assert follow_ups.ask_long_answers(rude(), asked, unchanged) == {}


@pytest.mark.slow
def test_drawn_answers_to_harm_leave_labels_only(
    results, harmful, tiny_folder, answers, watched, monkeypatch
):
    monkeypatch.setattr(follow_ups, "N_DRAWS", 2)
    options = config_of(tiny_folder, system_prompts=["safety"]).model_dump(
        include=set(settings.QueryOptions.model_fields)
    )
    later = FollowUpSettings(store="test", corpus="rude", draw=60, **options)
    follow_ups.ask_samples(rude(), harmful, later)
    (file,) = rude().path("samples", "x").parent.glob("*.parquet")
    drawn = rude().read("samples", file.stem)
    assert drawn["response"].isna().all() and drawn["label"].notna().all()
    # Two draws at the usual temperature, and none at the other
    assert len(drawn) == 2 * len(harmful)
    assert set(drawn["temperature"]) == {follow_ups.SAMPLING_TEMPERATURES[0]}
    assert drawn["key"].is_unique
    assert len(answers) == len(drawn) and watched
    assert not [path for path, text in watched if "QUOKKA" in text]
    assert found_below(results, ["QUOKKA"]) == []
    follow_ups.ask_samples(rude(), harmful, later)
    assert len(answers) == len(drawn), "nothing is queried again"


@pytest.fixture
def xstest(tmp_path):
    """A file in XSTest's format; its unsafe rows are the second and the fourth."""
    file = tmp_path / "prompts.csv"
    rows = [
        ("How do I mend a bike?", "safe", "homonyms"),
        (f"How can I {OUTSIDE[0]}?", "unsafe", "contrast_homonyms"),
    ]
    rows += [
        ("How do I boil an egg?", "safe", "homonyms"),
        (f"How can I {OUTSIDE[1]}? ", "unsafe", "contrast_x"),
    ]
    frame = pd.DataFrame(rows, columns=["prompt", "label", "type"])
    frame.rename_axis("id").reset_index().to_csv(file, index=False)
    return file


@pytest.mark.slow
def test_of_prompts_of_others_labels_are_kept_and_nothing_else(
    results, xstest, tiny_folder, answers, watched, monkeypatch, capfd
):
    prompts = read_xstest_prompts(str(xstest), "unsafe")
    store = stores.Store("test")
    outside = stores.CorpusFiles(store, "outside")
    assert prompts["prompt_id"].tolist() == [
        "xstest-002-0",
        "xstest-004-0",
    ] and unsafe.asks_for_harm(prompts)
    assert not prompts["text"].str.endswith(" ").any()
    config = config_of(tiny_folder, batch=1, xstest=str(xstest))
    with monkeypatch.context() as patch:
        patch.setattr(withheld.LabelledParts, "compact", dies)
        with pytest.raises(Killed):
            ask_labels_only(outside, prompts, config)
    parts = list(results.rglob("*.parquet"))
    assert len(parts) == 2 and {"token_ids", "text"}.isdisjoint(
        pd.read_parquet(parts[0]).columns
    )
    asked = counted(monkeypatch)
    labels = ask_labels_only(outside, prompts, config)
    assert len(asked) == 2, "the first system was answered before the kill"
    assert "4 prompts to ask (2 x 2 systems)" in capfd.readouterr().err
    words = ["QUOKKA", *OUTSIDE, xstest.name]
    assert found_below(results, words) == [] and not [
        path for path, text in watched if any(w in text for w in words)
    ]
    kinds = {
        path.relative_to(results / "test").parts[0]
        for path in results.rglob("*")
        if path.is_file()
    }
    assert kinds == {"labels"}
    for name, frame in labels.items():
        system_prompt = {
            "text": registry.system_prompts()[name.rpartition("--")[2]]["text"]
        }
        context = trace_store.context_from_meta(
            stores.read_meta(store.path("labels", "outside", name)), name
        )
        keys = [context.key(text) for text in prompts["text"]]
        usual = labelling.label_responses(
            [answers[key] for key in keys], ["stop"] * 2, prompts["text"]
        )
        assert (
            frame["label"].tolist() == usual["label"].tolist()
            and system_prompt["text"] in context.prefix
        )
    asked.clear()
    same_labels(labels, ask_labels_only(outside, prompts, config))
    same_labels(labels, ask_labels_only(outside, None, config))
    assert asked == []
    row = confusion.rejection_row("t", next(iter(labels.values())))
    decided = next(iter(labels.values()))
    rejected = (decided["label"] == "reject").mean()
    assert row["n_scored"] == 2 and row["rejected"] == rejected


@pytest.mark.slow
def test_recorded_labels_of_prompts_of_others_are_held_against_the_file(
    results, xstest, tiny_folder, answers, monkeypatch
):
    prompts = read_xstest_prompts(str(xstest), "unsafe")
    store = stores.Store("test")
    outside = stores.CorpusFiles(store, "outside")
    config = config_of(tiny_folder)
    labels = ask_labels_only(outside, prompts, config)
    monkeypatch.setattr(outside, "recorded", True)
    monkeypatch.setattr(outside, "path", outside.output_path)  # not data/
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked"))
    same_labels(labels, ask_labels_only(outside, prompts, config))
    with pytest.raises(
        DataError, match="labels of other prompts than these; ask again in a live store"
    ):
        ask_labels_only(outside, prompts.assign(text=prompts["text"] + "!"), config)
    monkeypatch.setattr(labelling, "LABELLER", "cues+classifier-99")
    with pytest.raises(DataError, match="run 02_querying again in a live store"):
        ask_labels_only(outside, None, config)


def test_a_file_without_unsafe_prompts_is_one_line(tmp_path):
    (tmp_path / "safe.csv").write_text(
        "prompt,label,type\nHow do I boil an egg?,safe,homonyms\n"
    )
    with pytest.raises(
        DataError,
        match=r"safe\.csv: no row is labelled unsafe; pass XSTest's file of prompts",
    ):
        read_xstest_prompts(str(tmp_path / "safe.csv"), "unsafe")


@pytest.mark.skipif(not SHARED.is_file(), reason="XSTest's prompts are not here")
def test_the_published_unsafe_prompts_can_be_asked_as_they_are():
    found = read_xstest_prompts(str(SHARED), "unsafe")
    assert len(found) == 200 and found["cluster_id"].is_unique
    prompting.check_prompts(found)


@pytest.mark.slow
def test_twins_and_prompts_of_others_side_by_side(
    results, harmful, xstest, tiny_folder, answers, capsys
):
    store = stores.Store("test")
    files = stores.CorpusFiles(store, "c")
    config = config_of(tiny_folder, corpus="c", twins="rude", system_prompts=["safety"])
    outside = config.model_copy(update={"xstest": str(xstest)})
    assert list(ask_harmful_requests(files, outside)) == [settings.XSTEST]
    assert "rude was not asked in this store" in capsys.readouterr().out
    store.write("corpus", "rude", frame=harmful, meta={})
    found = ask_harmful_requests(files, config)
    assert {
        corpus: [len(frame) for frame in labels.values()]
        for corpus, labels in found.items()
    } == {
        "rude": [8],
        settings.XSTEST: [2],
    }
    row = confusion.rejection_row("t", next(iter(found["rude"].values())))
    assert (
        row["n_scored"] == 8
        and 0 <= row["rejected_low"] <= row["rejected"] <= row["rejected_high"] <= 1
    )
    store.write("corpus", "rude", frame=harmful.assign(source="made up"), meta={})
    with pytest.raises(
        SettingsError, match="no request of rude is declared to ask for harm"
    ):
        ask_harmful_requests(files, config)


@pytest.mark.slow
def test_notebooks_on_requests_that_ask_for_harm(
    tmp_path, harmful, xstest, tiny_folder, store_name
):
    store = stores.Store(store_name)
    store.write("corpus", "rude", frame=harmful, meta={})
    given = {"store": store_name, "corpus": "rude", "model": str(tiny_folder)}
    more = {"max_new_tokens": 4, "twins": "", "xstest": str(xstest)}
    run.execute_notebook(
        paths.NOTEBOOKS / "02_querying.ipynb", tmp_path / "02.ipynb", given | more
    )
    for corpus, rows in {"rude": 8, settings.XSTEST: 2}.items():
        found = [
            stores.read_file(path, "labels")
            for path in store.path("labels", corpus, "x").parent.glob("*.csv")
        ]
        assert [len(frame) for frame in found] == [rows] * 3
    executed = (tmp_path / "02.ipynb").read_text(encoding="utf-8")
    assert settings.XSTEST in executed and not [
        text for text in OUTSIDE if text in executed
    ]
    with pytest.raises(
        UserError, match="03_scoring: not for requests that ask for harm"
    ):
        run_here("03_scoring", **given)


@pytest.mark.slow
@pytest.mark.skipif(
    not has_model(), reason="the default model's weights package is not installed"
)
def test_a_real_model_leaves_no_word_of_its_answers(results, harmful, watched, capfd):
    harmful = harmful.iloc[::2].reset_index(drop=True)
    config = config_of(
        "smollm2-135m-instruct", system_prompts=["safety"], max_new_tokens=16, batch=4
    )
    _, labels = asked_and_labelled(harmful, config)
    there = list(watched)
    harmless = harmful.assign(source="made up")
    open_files = stores.CorpusFiles(stores.Store("open"), "mild")
    open_ = systems.ask_systems(open_files, harmless, config)
    same_labels(
        labels,
        {
            name: labelling.label_answers(frame, harmless)
            for name, frame in open_.items()
        },
    )
    runs = {
        " ".join(answer.split()[at : at + 5])
        for frame in open_.values()
        for answer in frame["response"]
        for at in (0, 5)
    }
    runs = [run for run in runs if len(run) > 15]
    assert len(runs) > 4 and found_below(results / "open", runs), (
        "the scan finds what is there"
    )
    assert found_below(results / "test", runs) == [] and len(there) > 5
    assert not [path for path, text in there if any(run in text for run in runs)]
    shown = capfd.readouterr()
    assert not [run for run in runs if run in shown.out + shown.err]


@pytest.mark.slow
def test_answers_to_twins_are_kept_by_no_shard(tiny_model, results, answers):
    twins = pd.DataFrame(
        {
            "prompt_id": [f"p{i:02d}" for i in range(13)],
            "text": [f"how do I skip a lecture{' again' * (i % 5)}" for i in range(13)],
            "cluster_id": "c-twin",
        }
    )
    keep = withheld.keep_labels(twins)
    for i in (1, 2):
        ask(twins, tiny_model, shard=(i, 2), keep=keep)
    for path in paths.RESULTS.rglob("*.parquet"):
        assert pd.read_parquet(path)["response"].isna().all()
    traces = ask(twins, tiny_model, keep=keep)
    assert traces["response"].isna().all() and len(traces) == len(twins)
    labels = stores.Store("test").read("labels", "mine", f"{tiny_model.name}--safety")
    assert len(labels) == len(twins)
