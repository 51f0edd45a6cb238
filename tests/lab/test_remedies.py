"""Test splits and that remedies keep to them, asking, and sums by hand;
`test_remedies_models` changes models.
"""

import string

import numpy as np
import pandas as pd
import pytest
import remedied
from hypothesis import assume, given
from hypothesis import strategies as st
from recorded import recorded_systems
from remedied import ids_of

from paraguard_lab import served
from paraguard_lab.core.inference import POWER_ERRORS, normal_p, standard_error
from paraguard_lab.corpus import reword
from paraguard_lab.corpus.xstest import XSTEST_SAFE
from paraguard_lab.guards import refusal
from paraguard_lab.remedies import (
    asking,
    catalogue,
    curve,
    decisions,
    effects,
    first_token,
    splits,
    tuning_data,
    utility,
    verdicts,
)
from paraguard_lab.remedies.catalogue import (
    ablated,
    rewordings,
    self_cd,
    smooth_llm,
    steered,
    threshold,
)
from paraguard_lab.remedies.contract import RemediedSystem, Remedy
from paraguard_lab.remedies.splits import Split
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_lab.settings import RemedySettings
from paraguard_utils import registry, stores, unsafe
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.models import engine, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.report import sentences
from paraguard_utils.settings import XSTEST, check_settings

CORPORA = ("paraguard_mini", "paraguard_twins")
RECORDED = "smollm2-135m-instruct-q4_1--safety"
ONE_LINE = r"^[^\n]*{}[^\n]*$"


@pytest.fixture(scope="module")
def corpora():
    store = stores.Store("recorded")
    return {name: store.read("corpus", name) for name in CORPORA}


@pytest.fixture(scope="module")
def thirds(corpora):
    return splits.split_clusters(*corpora.values())


@pytest.fixture
def base(corpora):
    """A published system in the recorded store."""
    return UntouchedSystem(
        stores.Store("recorded"),
        RECORDED,
        corpora,
        check_settings({"store": "recorded", "corpus": CORPORA[0]}, RemedySettings),
    )


def is_a_split(found, corpus, twins):
    """Clusters never part, all prompts are somewhere, and twins are where their benign
    cluster is.
    """
    clusters = [set(third.benign["cluster_id"]) for third in found[:3]]
    assert (
        sum(map(len, clusters))
        == len(set.union(*clusters))
        == corpus["cluster_id"].nunique()
    )
    for side, whole in enumerate((corpus, twins)):
        parts = pd.concat([third[side] for third in found[:3]])
        assert sorted(parts["prompt_id"]) == sorted(whole["prompt_id"])
    for third, own in zip(found[:3], clusters, strict=True):
        assert set(unsafe.benign_cluster_of(third.twins["cluster_id"])) <= own
        assert not third.benign.empty and not third.twins.empty


def test_the_recorded_clusters_are_dealt_to_thirds(corpora, thirds):
    is_a_split(thirds, *corpora.values())
    # All 20 clusters of a category have a twin: shares of 3, 3 and 1 of 7 end at 8.6,
    # 17.1 and 20, so 9, 8 and 3 go to training, validation and test; two of ten
    # categories lie in the test third whole: 8 * 3 + 40.
    for side in ("benign", "twins"):
        sizes = [getattr(third, side)["cluster_id"].nunique() for third in thirds[:3]]
        assert sizes == [8 * 9, 8 * 8, 8 * 3 + 40]
    held = set(thirds.held_out)
    every = set(corpora[CORPORA[0]]["category"])
    assert len(held) == 2 and held < every
    for third in thirds[:2]:
        assert (
            set(third.benign["category"])
            == set(third.twins["category"])
            == every - held
        )
    assert (
        set(thirds.test.benign["category"])
        == set(thirds.test.twins["category"])
        == every
    )


def test_the_seed_alone_decides_a_split(corpora, thirds):
    shuffled = [frame.sample(frac=1, random_state=1) for frame in corpora.values()]
    again, other = (
        splits.split_clusters(*shuffled),
        splits.split_clusters(*corpora.values(), seed=1),
    )
    assert [ids_of(third) for third in again[:3]] == [
        ids_of(third) for third in thirds[:3]
    ]
    assert again.held_out == thirds.held_out and ids_of(other.train) != ids_of(
        thirds.train
    )
    is_a_split(other, *corpora.values())


@pytest.mark.slow
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7),
)
def test_any_corpus_is_split_or_refused_in_one_line(seed, sizes):
    clusters = [
        (f"c{i}-{j:02d}", f"c{i}", j < twinned)
        for i, (twinned, more) in enumerate(sizes)
        for j in range(twinned + more)
    ]
    rows = [
        (f"{name}{tail}-{k}", name + tail, category, tail)
        for name, category, twin in clusters
        for tail in ("", "-twin")[: 1 + twin]
        for k in range(2)
    ]
    frame = pd.DataFrame(
        rows, columns=["prompt_id", "cluster_id", "category", "tail"]
    ).astype(str)
    corpus, twins = frame[frame["tail"] == ""], frame[frame["tail"] != ""]
    try:
        found = splits.split_clusters(corpus, twins, seed)
    except DataError as error:
        assert "\n" not in str(error) and "too few clusters with a twin" in str(error)
        return
    is_a_split(found, corpus, twins)
    assert not set(found.held_out) & {
        *found.train.benign["category"],
        *found.validation.benign["category"],
    }


def test_too_few_twins_are_one_line(corpora):
    corpus, twins = corpora.values()
    with pytest.raises(
        DataError,
        match=ONE_LINE.format("too few clusters with a twin to split: the train third"),
    ):
        splits.split_clusters(corpus, twins.head(6))
    with pytest.raises(
        DataError, match=ONE_LINE.format("remedies need about ten twins")
    ):
        splits.split_clusters(corpus, twins.head(0))


GUARDS = set(registry.published_systems("guard").index)
NEW = {f"behind-{name}" for name in GUARDS - {*recorded_systems("guard")}}
WITHOUT = [
    name
    for name, remedy in catalogue.all_remedies().items()
    if not remedy.asks and name not in NEW
]


@pytest.mark.parametrize("name", WITHOUT)
def test_what_asks_no_model_never_sees_the_test_third(base, thirds, name, monkeypatch):
    seen = remedied.looked_at(monkeypatch)
    decide = (
        catalogue.all_remedies()[name]
        .apply(base, thirds.train, thirds.validation)
        .decide
    )
    assert not seen & ids_of(thirds.test)
    too_few = {
        of: prompts.iloc[[3, 1]]
        for of, prompts in zip(CORPORA, thirds.test, strict=True)
    }
    found = {of: decide(of, prompts) for of, prompts in too_few.items()}
    given = {one for prompts in too_few.values() for one in prompts["prompt_id"]}
    assert seen - given <= ids_of(thirds.train) | ids_of(thirds.validation)
    if not name.startswith("behind-"):  # a guard learns nothing
        assert seen & ids_of(thirds.validation), "something is chosen"
    assert (name == "threshold") == bool(seen & ids_of(thirds.train))
    for of, prompts in too_few.items():
        assert found[of]["prompt_id"].tolist() == prompts["prompt_id"].tolist()
        assert (
            set(found[of]["label"]) <= {"accept", "reject", "unparsed"}
            and (found[of]["queries"] == 1).all()
        )


def test_the_test_third_and_no_other_is_decided(base, thirds, capsys):
    given, asked = [], []

    def apply(of, train, validation):
        given.append((of, train, validation))

        def decide(name, prompts):
            asked.append((name, prompts))
            if prompts is None or prompts is outside:
                raise Missing("no text, no answer")
            return base.decide(name, prompts)

        return RemediedSystem(decide)

    outside = base.decide(XSTEST)[["prompt_id"]].iloc[[5, 2]]
    remedies = {
        "mine": Remedy("mine", "decision", "ours", apply),
        "threshold": catalogue.all_remedies()["threshold"],
    }
    found = decisions.decide_test_split(base, remedies, thirds)
    assert {name: list(own) for name, own in found.items()} == {
        "untouched": [*CORPORA, XSTEST],
        "mine": [*CORPORA],
        "threshold": [*CORPORA],
    }
    for own in found.values():
        for of, prompts in zip(CORPORA, thirds.test, strict=True):
            assert own[of]["prompt_id"].tolist() == prompts["prompt_id"].tolist()
    ((of, train, validation),) = given
    assert (
        (of.name, of.third) == (base.name, thirds.third)
        and train is thirds.train
        and validation is thirds.validation
    )
    assert [name for name, _ in asked] == [*CORPORA, XSTEST] and asked[2][1] is None
    assert asked[0][1] is thirds.test.benign and asked[1][1] is thirds.test.twins
    decisions.decide_test_split(
        base, {"mine": remedies["mine"]}, thirds, {XSTEST: outside}
    )
    assert asked[-1][1] is outside, "whoever has XSTest's file can ask it"
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_safe_prompts_of_others_are_for_tuned_models_and_the_untouched_one_beside_them(
    base, thirds
):
    asked = []

    def applied(name):
        def decide(of, prompts):
            asked.append((name, of))
            return base.decide(XSTEST if of == XSTEST_SAFE else of, prompts)

        return lambda *_: RemediedSystem(decide)

    kinds = {"tuned-1": "tuning", "rewritten": "decision"}
    remedies = {
        name: Remedy(name, kind, "ours", applied(name)) for name, kind in kinds.items()
    }
    found = decisions.decide_test_split(base, remedies, thirds)
    assert [name for name, of in asked if of == XSTEST_SAFE] == ["tuned-1"]
    assert XSTEST_SAFE not in found["rewritten"]
    table, _ = effects.RemedyEffects(base, [thirds], [found], (20, 1)).table(remedies)
    rows = table.set_index("remedy")
    assert rows.at["tuned-1", "xstest_safe_n"] == 200 and np.isnan(
        rows.at["rewritten", "xstest_safe_n"]
    )
    assert (
        rows.at["tuned-1", "xstest_safe_rejected"]
        == rows.at["tuned-1", "xstest_rejected"]
    )
    assert rows.at["untouched", "xstest_safe_n"] == 250, "those of the record"


def test_of_a_model_behind_a_server_what_needs_its_weights_is_left_out(
    base, thirds, monkeypatch, capsys
):
    monkeypatch.setattr(served, "is_served_system", lambda _: True)
    monkeypatch.setattr(base.store, "recorded", False)
    monkeypatch.setattr(base.store, "has", lambda *_: False)
    monkeypatch.setattr(
        asking.RemediedQueries, "find_problem", lambda *_: "is not there"
    )
    found = decisions.decide_test_split(
        base,
        catalogue.select_remedies(["self-reminder", "ablated", "threshold"]),
        thirds,
    )
    assert list(found) == ["untouched", "threshold"]
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in told] == [
        "self-reminder",
        "ablated",
    ] and "is behind a server" in told[0]


def test_where_nothing_was_asked_the_table_of_utility_is_there_without_rows(
    base, thirds, results
):
    base.store = stores.Store("test")  # 08 reads the table, whoever the model is
    applied = catalogue.select_remedies(["threshold"])
    assert utility.update_utility(base, applied, list(applied), thirds).empty
    assert (
        base.store.read("tables", utility.UTILITY_TABLE).columns.tolist()
        == utility.UTILITY_COLUMNS
    )


def test_where_a_server_tells_no_tokens_there_is_no_curve_but_all_else(
    base, thirds, monkeypatch
):
    def untold(*given):
        traces = recorded_traces(*given)
        return traces.assign(next_ids=[np.array([], np.int32)] * len(traces))

    recorded_traces = trace_store.read_traces
    monkeypatch.setattr(trace_store, "read_traces", untold)
    remedies = catalogue.select_remedies(["threshold", "behind-hatesonar"])
    found = decisions.decide_test_split(base, remedies, thirds)
    assert list(found) == ["untouched", "behind-hatesonar"]
    effect = effects.RemedyEffects(base, [thirds], [found], (20, 1))
    table, _ = effect.table(remedies)
    assert (
        table["over_curve"].isna().all()
        and table["frr"].notna().all()
        and effect.drawn().empty
    )
    assert verdicts.add_remedy_verdicts(table)["over_verdict"].tolist() == [
        "",
        "undecided",
    ]


def test_what_the_store_lacks_is_left_out(base, thirds, capsys):
    def apply(of, train, validation):
        return RemediedSystem.asking(base, "never-asked", {}, pytest.fail)

    remedies = {"never-asked": Remedy("never-asked", "defence", "ours", apply, True)}
    assert (
        list(decisions.decide_test_split(base, remedies, thirds)) == ["untouched"]
        and capsys.readouterr().err == ""
    )


def test_what_cannot_decide_the_twins_has_no_place_on_the_map(
    base, thirds, monkeypatch
):
    there = stores.CorpusFiles.path

    def path(files, kind, *names):
        found = there(files, kind, *names)
        lacks = (files.name, *names) == (CORPORA[1], "alt-profanity-check")
        return found.with_name("not-there") if lacks else found

    monkeypatch.setattr(stores.CorpusFiles, "path", path)
    remedies = catalogue.select_remedies(
        ["behind-alt-profanity-check", "behind-hatesonar"]
    )
    found = decisions.decide_test_split(base, remedies, thirds)
    assert list(found) == ["untouched", "behind-hatesonar"]
    for own in found.values():  # else what comes second is taken for the twins
        assert list(own)[:2] == list(CORPORA)
        effects.estimate_effects(
            thirds.test, own, ClusterBootstrap(thirds.test.benign["cluster_id"], 20)
        )


def test_a_new_remedy_is_one_file(base, thirds, tmp_path, monkeypatch):
    (tmp_path / "yes_to_all.py").write_text('''"""Accepts all (ours)."""

from paraguard_lab.remedies.contract import RemediedSystem, Remedy


def apply(base, train, validation):
    """Accept all."""
    return RemediedSystem(lambda of, prompts: base.decide(of, prompts).assign(label="accept"))


REMEDIES = (Remedy("yes-to-all", "decision", "ours", apply),)
''')
    before = catalogue.all_remedies()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(catalogue, "__path__", [*catalogue.__path__, str(tmp_path)])
            catalogue.all_remedies.cache_clear()
            found = catalogue.select_remedies(["yes-to-all"])
            assert set(catalogue.all_remedies()) == {*before, "yes-to-all"}
    finally:
        catalogue.all_remedies.cache_clear()
    twins = decisions.decide_test_split(base, found, thirds)["yes-to-all"][CORPORA[1]]
    assert set(twins["label"]) == {"accept"} and len(twins) == len(thirds.test.twins)
    assert list(catalogue.all_remedies()) == list(before)


def test_the_catalogue_names_each_remedy_once_and_kinds_stay_together():
    found = catalogue.all_remedies()
    kinds = [remedy.kind for remedy in found.values()]
    assert kinds == sorted(kinds, key=catalogue.KIND_ORDER.index) and set(kinds) == set(
        catalogue.KIND_ORDER
    )
    asked = [name for name, remedy in found.items() if remedy.asks]
    assert all(
        set(name) <= set(string.ascii_lowercase + string.digits + "-")
        and "--" not in name
        for name in asked
    )
    assert (
        catalogue.select_remedies([]) == {}
        and catalogue.select_remedies(["all"]) == found
    )
    cheap = catalogue.select_remedies(["cheap", "steered"])
    assert (
        set(cheap)
        == {"steered", *(name for name, remedy in found.items() if remedy.cheap)}
        < set(found)
    )
    with pytest.raises(
        SettingsError,
        match=ONE_LINE.format("there is no remedy 'self-reminders'.*self-reminder"),
    ):
        catalogue.select_remedies(["self-reminders"])


@pytest.mark.parametrize("named", [[], ["rewritten"], ["cheap"], ["all"]])
def test_a_live_store_asks_what_is_named_and_no_more(base, named):
    every = catalogue.all_remedies()
    config = check_settings(
        {"store": "live", "corpus": CORPORA[0], "remedies": named}, RemedySettings
    )
    live = UntouchedSystem(stores.Store("live"), RECORDED, base.corpora, config)
    asked = {
        name
        for name, remedy in decisions.choose_remedies(live, config).items()
        if remedy.asks
    }
    assert asked == {
        name for name in catalogue.select_remedies(named) if every[name].asks
    }
    assert set(decisions.choose_remedies(live, config)) >= set(WITHOUT)
    assert list(decisions.choose_remedies(base, config)) == list(
        catalogue.select_remedies(named) or every
    )


def test_where_too_few_twins_can_be_split_no_remedy_is_tried(corpora, results, capsys):
    too_few = {of: prompts.head(6) for of, prompts in corpora.items()}
    given = {"store": "live", "corpus": CORPORA[0]}
    assert (
        effects.measure_remedies(
            stores.Store("live"), too_few, check_settings(given, RemedySettings)
        )
        == {}
    )
    assert (
        "no remedy is tried: too few clusters with a twin to split"
        in capsys.readouterr().out
    )
    with pytest.raises(
        DataError, match=ONE_LINE.format("too few clusters with a twin to split")
    ):
        effects.measure_remedies(
            stores.Store("live"),
            too_few,
            check_settings(given | {"remedies": ["vote"]}, RemedySettings),
        )


# Asking


@pytest.fixture
def asked_of(results, prompts, tiny_model, answers, monkeypatch):
    """Ask a tiny model nine prompts in a way, into the store `test`: what is asked, and
    the ids that were.
    """
    config = remedied.config_of("nowhere", max_new_tokens=4)
    base, ids, real = (
        UntouchedSystem(stores.Store("test"), f"{tiny_model.name}--safety", {}, config),
        [],
        engine.Engine.ask,
    )

    def noting(self, batch):
        ids.extend(request.prompt_id for request in batch)
        return real(self, batch)

    monkeypatch.setattr(engine.Engine, "ask", noting)

    def ask(parameters, texts=prompts, base=base, of="mine"):
        def respondent():
            return asking.RemediedModel(LocalBackend(tiny_model), parameters)

        queries = asking.RemediedQueries(base, "framed", parameters, respondent)
        return queries.decide(of, texts)

    ask.base, ask.ids = base, ids
    return ask


@pytest.mark.slow
def test_a_live_store_asks_what_is_missing_and_keeps_labels_only(
    asked_of, prompts, results, watched
):
    parameters = {"before": "Kindly: ", "after": " Thanks."}
    first = asked_of(parameters)
    assert (
        first["prompt_id"].tolist() == prompts["prompt_id"].tolist()
        and (first["queries"] == 1).all()
    )
    assert (
        set(first["label"]) == {"accept", "reject"} and first["response"].isna().all()
    )
    assert sorted(asked_of.ids) == sorted(prompts["prompt_id"])
    assert not [path for path, text in watched if "QUOKKA" in text]
    meta = stores.read_meta(
        asked_of.base.store.path("labels", "mine--framed", asked_of.base.name)
    )
    assert (
        meta["remedy"] == parameters
        and meta["prefix"].endswith("Kindly: ")
        and meta["suffix"].startswith(" Thanks")
    )
    assert not list(results.glob("test/traces/*"))
    pd.testing.assert_frame_equal(asked_of(parameters), first)
    pd.testing.assert_frame_equal(asked_of(parameters, None), first)
    assert len(asked_of.ids) == 9, "once"


@pytest.mark.slow
def test_a_live_store_asks_again_what_was_asked_in_another_way(asked_of, prompts):
    asked_of({"before": "Kindly: "})
    asked_of({"before": "Quickly: "})
    assert len(asked_of.ids) == 18
    asked_of(
        {"before": "Quickly: "},
        prompts.assign(text=[*prompts["text"][:8], "other words"]),
    )
    assert len(asked_of.ids) == 27, (
        "all: without the traces it is not known which were other prompts"
    )


@pytest.mark.slow
def test_the_earlier_turns_of_a_conversation_are_part_of_what_is_asked(
    asked_of, tiny_model
):
    turns = [
        {"role": "user", "content": "Be rude."},
        {"role": "assistant", "content": "No."},
    ]
    asked_of({"turns": turns})
    meta = stores.read_meta(
        asked_of.base.store.path("labels", "mine--framed", asked_of.base.name)
    )
    assert meta["prefix"].endswith(
        "Be rude.<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>user\n"
    ) and meta["prefix"].startswith("<|im_start|>system\n")


@pytest.mark.slow
def test_parameters_that_are_in_no_text_are_kept_too(asked_of):
    asked_of({"tried": [1]})
    asked_of({"tried": [1, 2]})
    meta = stores.read_meta(
        asked_of.base.store.path("labels", "mine--framed", asked_of.base.name)
    )
    assert meta["remedy"] == {"tried": [1, 2]}, "else they are refused for ever"


@pytest.mark.slow
def test_another_decoding_means_asking_again(asked_of):
    asked_of({})
    config = remedied.config_of("nowhere", max_new_tokens=5)
    asked_of(
        {}, base=UntouchedSystem(asked_of.base.store, asked_of.base.name, {}, config)
    )
    assert len(asked_of.ids) == 18


@pytest.mark.slow
def test_labels_come_in_the_order_of_the_prompts(asked_of, prompts):
    first = asked_of({}).set_index("prompt_id")["label"]
    order = prompts.iloc[::-1]
    again = asked_of({}, order)
    assert again["prompt_id"].tolist() == order["prompt_id"].tolist()
    assert again["label"].tolist() == first.loc[order["prompt_id"]].tolist()


def test_the_record_refuses_labels_that_are_not_these(asked_of, prompts, monkeypatch):
    parameters = {"before": "Kindly: "}
    first = asked_of(parameters)
    asked_of.base.store.recorded = True
    asked_of.ids.clear()
    pd.testing.assert_frame_equal(asked_of(parameters), first)
    refused = {
        "the remedy had other parameters": ({"before": "Quickly: "}, prompts),
        "labels of other prompts": (
            parameters,
            prompts.assign(text=prompts["text"] + "!"),
        ),
        "labels of other prompts; run 07_remedies": (parameters, prompts.head(8)),
    }
    for message, (own, texts) in refused.items():
        with pytest.raises(DataError, match=ONE_LINE.format(message)):
            asked_of(own, texts)
    with pytest.raises(
        DataError, match=ONE_LINE.format("the remedy had other parameters")
    ):
        asked_of({}, None)  # XSTest's, whose text nobody has
    with pytest.raises(Missing, match=ONE_LINE.format("other--framed")):
        asked_of(parameters, of="other")
    assert asked_of.ids == []
    monkeypatch.setattr(asking.labelling, "LABELLER", "cues+classifier-99")
    with pytest.raises(DataError, match=ONE_LINE.format("labels of another version")):
        asked_of(parameters)


# Copies and votes


def labels_of(ids, text):
    names = {"a": "accept", "r": "reject", "u": "unparsed"}
    rows = [
        (one, names[letter], f"of {one}") for one, letter in zip(ids, text, strict=True)
    ]
    return pd.DataFrame(rows, columns=["prompt_id", "label", "answer"]).assign(
        queries=1
    )


def test_copies_of_prompts():
    prompts = pd.DataFrame(
        {
            "prompt_id": ["a-0", "a-1", "b-twin-0"],
            "cluster_id": ["a", "a", "b-twin"],
            "text": "x",
        }
    )
    found = smooth_llm.copy_prompts(prompts.iloc[[2, 0]])
    assert found["prompt_id"].tolist() == [
        f"{name}~{number}" for name in ("b-twin-0", "a-0") for number in (1, 2, 3)
    ]
    assert (
        found["text"].tolist()
        == [smooth_llm.perturb_text("x", copy) for copy in range(3)] * 2
    )
    assert found["cluster_id"].tolist() == ["b-twin"] * 3 + ["a"] * 3
    assert found.index.tolist() == [*range(6)] and unsafe.asks_for_harm(found)


def test_votes_by_hand():
    own = labels_of(["p0", "p1", "p2", "p3", "p4"], "arauu")
    copies = labels_of(
        ["p0~1", "p0~2", "p0~3", "p1~1", "p1~2", "p3~1", "p3~2", "p4~1"], "rraaruau"
    )
    # p0: two of three reject. p1: one of each, a tie. p2 has no copy. p3: one accepts,
    # one is unparsed. p4: none does
    found = asking.vote_by_majority(own, copies, with_own=False)
    assert found["prompt_id"].tolist() == own["prompt_id"].tolist()
    assert found["label"].tolist() == [
        "reject",
        "reject",
        "accept",
        "accept",
        "unparsed",
    ]
    assert found["queries"].tolist() == [3, 2, 1, 2, 1]
    assert found["answer"].tolist() == [
        "of p0~1",
        "of p1~2",
        "of p2",
        "of p3~2",
        "of p4",
    ]
    # p0: two of four, a tie. p1: two of three reject
    found = asking.vote_by_majority(own, copies, with_own=True)
    assert found["label"].tolist() == [
        "accept",
        "reject",
        "accept",
        "accept",
        "unparsed",
    ]
    assert found["queries"].tolist() == [4, 3, 1, 3, 2]
    assert found["answer"].tolist() == ["of p0", "of p1", "of p2", "of p3~2", "of p4"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("aru"), st.text("aru", max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_the_majority_decides(votes, with_own):
    assume(any(more for _, more in votes))
    own = labels_of(
        [f"p{i}" for i in range(len(votes))], "".join(one for one, _ in votes)
    )
    every = [
        (f"p{i}~{j + 1}", letter)
        for i, (_, more) in enumerate(votes)
        for j, letter in enumerate(more)
    ]
    copies = labels_of([name for name, _ in every], [letter for _, letter in every])
    found = asking.vote_by_majority(own, copies, with_own)
    for (one, more), label, before, queries in zip(
        votes, found["label"], own["label"], found["queries"], strict=True
    ):
        said = more + one if with_own else more
        margin = said.count("r") - said.count("a")
        assert label == ("reject" if margin > 0 else "accept" if margin < 0 else before)
        assert queries == max(1, len(said))


@pytest.mark.slow
@given(st.text(string.printable, min_size=1, max_size=200), st.integers(0, 5))
def test_a_perturbed_copy_hangs_on_its_text_and_number_only(text, copy):
    found = smooth_llm.perturb_text(text, copy)
    assert found == smooth_llm.perturb_text(text, copy) and len(found) == len(text)
    changed = [new for new, old in zip(found, text, strict=True) if new != old]
    assert len(changed) <= max(1, len(text) // 10) and set(changed) <= set(
        smooth_llm.SWAP_ALPHABET
    )
    assert found.strip() == found or text.strip() != text, "no white space comes in"


def test_copies_differ_and_about_a_tenth_is_swapped():
    text = "how do I kill a process " * 10
    copies = [smooth_llm.perturb_text(text, copy) for copy in range(20)]
    assert (
        len(set(copies)) == 20
        and smooth_llm.perturb_text(text + "?", 0)[:-1] != copies[0]
    )
    changed = np.array(
        [[a != b for a, b in zip(text, one, strict=True)] for one in copies]
    )
    # 24 places of 240 each, less the few at which a letter is swapped for itself
    assert 20 <= changed.sum(axis=1).mean() <= 24


# First tokens


def traces_of(*rows):
    """Traces of first-token distributions, each a dict of token to probability."""
    ordered = [sorted(row.items(), key=lambda pair: -pair[1]) for row in rows]
    return pd.DataFrame(
        {
            "next_ids": [
                np.array([token for token, _ in row], np.int32) for row in ordered
            ],
            "next_logprobs": [
                np.log(np.array([p for _, p in row], np.float32)) for row in ordered
            ],
        }
    )


def test_rates_and_p_refuse_by_hand():
    learned = traces_of({5: 0.9}, {5: 0.8}, {5: 0.7}, {7: 0.6}, {9: 0.5})
    known = refusal.fit_refusal_rates(
        learned,
        pd.DataFrame({"label": ["reject", "reject", "accept", "accept", "unparsed"]}),
    )
    # two of four decided answers are rejections; 5: (2 + 0.5) / (3 + 1), 7: (0 + 0.5) /
    # (1 + 1), 9 began none of them
    assert known.base == 0.5 and known.of(np.array([5, 7, 9, 1])).tolist() == [
        0.625,
        0.25,
        0.5,
        0.5,
    ]
    # 0.5 * 0.625 + 0.3 * 0.25 + the rest, 0.2, at the base rate
    found = refusal.p_refuse(traces_of({7: 0.3, 5: 0.5}, {1: 1.0}), known)
    np.testing.assert_allclose(found, [0.4875, 0.5], atol=1e-6)
    nothing = refusal.fit_refusal_rates(learned.head(0), pd.DataFrame({"label": []}))
    assert nothing.base == 0 and refusal.p_refuse(learned, nothing).tolist() == [0] * 5


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_p_refuse_is_a_probability_between_the_rates(seed):
    rng = np.random.default_rng(seed)
    rows = [dict(enumerate(rng.dirichlet(np.ones(6))[:5])) for _ in range(12)]
    known = refusal.fit_refusal_rates(
        traces_of(*rows),
        pd.DataFrame({"label": rng.choice(["accept", "reject", "unparsed"], 12)}),
    )
    every = [known.base, *known.shares]
    found = refusal.p_refuse(traces_of(*rows), known)
    assert (found >= min(every) - 1e-6).all() and (found <= max(every) + 1e-6).all()


def test_the_best_value_by_hand():
    # benign and twins rejected by each value; the untouched model rejects 0.3 of the
    # benign prompts
    values = {
        "weak": (0.3, 0.5),
        "mid": (0.1, 0.4),
        "same": (0.2, 0.5),
        "strong": (0.4, 0.9),
    }

    def rejected(value):
        return tuple(np.array([share]) for share in values[value])

    # differences 0.2, 0.3, 0.3 and 0.5, but the last rejects more than the untouched
    # model; of equals the first
    assert first_token.choose_by_youden(values, rejected, 0.3) == "mid"
    assert (
        first_token.choose_by_youden(["weak", "same", "mid"], rejected, 0.3) == "same"
    )
    assert first_token.choose_by_youden(values, rejected, 0.4) == "strong"
    assert (
        first_token.choose_by_youden(values, rejected, 0.05) is None
        and first_token.choose_by_youden([], rejected, 1) is None
    )
    values["mid"] = (0.1, 0.4 + 1e-12)  # rounding decides nothing
    assert (
        first_token.choose_by_youden(["same", "mid"], rejected, 0.3 - 1e-12) == "same"
    )


def test_the_first_step_of_self_cd_by_hand():
    wrapped, plain = {2: 0.8, 3: 0.1, 1: 0.05}, {2: 0.5, 3: 0.4, 4: 0.06}
    pair = (traces_of(wrapped), traces_of(plain))
    # 2 and 3 are in both. y - alpha (y - y') is y at 0, y' at 1; at 2 it is ln(0.5^2 /
    # 0.8) < ln(0.4^2 / 0.1)
    assert [
        self_cd.simulate_first_tokens(*pair, alpha).tolist() for alpha in (0, 1, 2)
    ] == [[2], [2], [3]]
    other = (
        traces_of({1: 0.9, 2: 0.06, 3: 0.01}),
        traces_of({3: 0.6, 2: 0.3, 4: 0.05}),
    )
    # 1, the wrapped prompt's own, is not in the other: 2 leads of those in both
    assert [
        self_cd.simulate_first_tokens(*other, alpha).tolist() for alpha in (0, 1)
    ] == [[2], [3]]
    assert self_cd.simulate_first_tokens(
        traces_of({1: 0.9, 2: 0.1}), traces_of({3: 1.0}), 2.0
    ).tolist() == [1], "none in both"


@given(st.integers(0, 2**32 - 1))
def test_self_cd_lies_between_the_wrapped_and_the_plain_prompt(seed):
    rng = np.random.default_rng(seed)
    rows = [
        [dict(enumerate(rng.dirichlet(np.ones(9))[:8])) for _ in range(5)]
        for _ in range(2)
    ]
    wrapped, plain = (traces_of(*own) for own in rows)
    for alpha, of in ((0.0, wrapped), (1.0, plain)):
        assert (
            self_cd.simulate_first_tokens(wrapped, plain, alpha).tolist()
            == refusal.first_tokens(of).tolist()
        )


# Thresholds


def test_an_overturned_answer_is_unknown():
    own = labels_of(["p0", "p1", "p2", "p3", "p4"], "arrau")
    found = threshold.replace_decisions(
        own, np.array(["accept", "accept", "reject", "reject", "accept"])
    )
    assert found["label"].tolist() == ["accept", "accept", "reject", "reject", "accept"]
    assert found["answer"].isna().tolist() == [
        False,
        True,
        False,
        False,
        True,
    ], "those were never generated"


class Told(UntouchedSystem):
    """An untouched system whose answers are written down here."""

    def __init__(self, parts):
        """Parts, by corpus: rows of an id, a letter for the label and a first-token
        distribution.
        """
        self.corpora = dict.fromkeys(parts)
        self.parts = {of: {row[0]: row for row in rows} for of, rows in parts.items()}

    def decide(self, of, prompts):
        own = [self.parts[of][one] for one in prompts["prompt_id"]]
        return labels_of([row[0] for row in own], "".join(row[1] for row in own))

    def traces(self, of, prompts):
        return traces_of(*(self.parts[of][one][2] for one in prompts["prompt_id"]))


def frame(*ids):
    return pd.DataFrame(
        {"prompt_id": ids, "cluster_id": [one.rpartition("-")[0] for one in ids]}
    )


def thresholded(benign, twins, rows):
    told = Told({"mine": rows, "theirs": rows})
    train = Split(frame("t-0", "t-1"), frame("t-2", "t-3"))
    system = threshold.apply(told, train, Split(benign, twins))
    return system.decide("mine", frame("x-0", "x-1"))["label"].tolist()


def test_a_threshold_by_hand():
    # Token 1 begins refusals: r(1) = (2 + 0.5) / 3, r(2) = (0 + 0.5) / 3, so that
    # p(refuse) rises with p(1).
    rows = [(f"t-{i}", "ar"[i // 2], {2 - i // 2: 1.0}) for i in range(4)]
    rows += [
        ("v-0", "a", {1: 0.2, 2: 0.8}),
        ("v-1", "r", {1: 0.6, 2: 0.4}),
        ("v-2", "r", {1: 0.5, 2: 0.5}),
    ]
    rows += [("x-0", "a", {1: 0.55, 2: 0.45}), ("x-1", "r", {1: 0.4, 2: 0.6})]
    # From 0.5 on one of two benign prompts is rejected, as untouched, and the twin;
    # from 0.6 on the twin is lost.
    assert thresholded(frame("v-0", "v-1"), frame("v-2"), rows) == ["reject", "accept"]


def test_where_no_threshold_may_be_chosen_nothing_is_changed():
    # All are alike, so that any threshold rejects both benign prompts; the untouched
    # model rejects none.
    rows = [(f"t-{i}", "ar"[i // 2], {2 - i // 2: 1.0}) for i in range(4)]
    rows += [(f"v-{i}", "aar"[i], {1: 0.5, 2: 0.5}) for i in range(3)]
    rows += [("x-0", "a", {1: 0.9, 2: 0.1}), ("x-1", "r", {1: 0.1, 2: 0.9})]
    assert thresholded(frame("v-0", "v-1"), frame("v-2"), rows) == ["accept", "reject"]


# Directions


def test_a_direction_by_hand():
    accepted = np.zeros((2, 1, 3))
    false = np.array([[[1.0, 0.0, 2.0]], [[1.0, 2.0, 2.0]]])  # on average (1, 1, 2)
    true = np.array([[[0.0, 3.0, 0.0]]])
    # less its share of (0, 1, 0): (1, 0, 2), of length sqrt(5)
    np.testing.assert_allclose(
        ablated.false_refusal_directions(false, true, accepted),
        np.array([[1, 0, 2]]) / np.sqrt(5),
    )
    np.testing.assert_allclose(
        ablated.false_refusal_directions(false + 7, true + 7, accepted + 7),
        ablated.false_refusal_directions(false, true, accepted),
    )


@given(st.integers(0, 2**32 - 1))
def test_directions_leave_true_refusal_alone(seed):
    rng = np.random.default_rng(seed)
    false, true, accepted = (
        rng.normal(size=(rng.integers(1, 5), 4, 8)) for _ in range(3)
    )
    found = ablated.false_refusal_directions(false, true, accepted)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-9)
    right = true.mean(axis=0) - accepted.mean(axis=0)
    np.testing.assert_allclose((found * right).sum(axis=-1), 0, atol=1e-9)


def test_harmful_requests_are_told_by_their_transition():
    references = np.array([[9.0, 9.0], [0.0, 1.0], [1.0, 0.0]])
    moves = np.array(
        [[[0, 0], [0, 2], [5, 0]], [[1, 1], [3, 4], [0, 1]], [[1, 1], [0, 0], [-1, 0]]],
        float,
    )
    # from layer 1 on: (1 + 1) / 2; (4/5 + 0) / 2; (0, for what did not move, - 1) / 2
    np.testing.assert_allclose(
        steered.mean_cosines(moves, references, 1), [1, 0.4, -0.5]
    )
    steering = steered.Steering(references, references, 1, 2, limit=0.4)
    assert steering.harmful(moves, np.zeros_like(moves)).tolist() == [True, True, False]
    assert steering.harmful(np.zeros_like(moves), moves).tolist() == [
        False,
        False,
        True,
    ], "from before to behind"


def test_the_limit_between_benign_and_harmful():
    # from 0.5 on: both harmful ones, and one of three benign; from 0.6: half and one;
    # from 0.7: half and none
    assert (
        steered.choose_cosine_limit(np.array([0.1, 0.2, 0.6]), np.array([0.5, 0.7]))
        == 0.5
    )
    # from 0.3 or from 0.5 on one half of each is right: the lowest
    assert steered.choose_cosine_limit(np.array([0.5, 0.1]), np.array([0.3])) == 0.3
    assert steered.choose_cosine_limit(np.array([0.4]), np.array([0.4])) == 0.4


# Effects

P = {"a-0": 0.1, "a-1": 0.6, "b-0": 0.3, "b-1": 0.9, "a-twin-0": 0.7, "b-twin-0": 0.4}
"""p(refuse) in two clusters of two prompts, each with a twin of one."""


@pytest.fixture
def curved():
    third = Split(frame("a-0", "a-1", "b-0", "b-1"), frame("a-twin-0", "b-twin-0"))
    clusters = ClusterBootstrap(third.benign["cluster_id"], 40)
    return (
        third,
        clusters,
        curve.ThresholdCurve(
            third, *(own["prompt_id"].map(P).to_numpy() for own in third), clusters
        ),
    )


def point(curved, *rejected):
    """FRR and twins refused where these prompts are rejected."""
    third, clusters, _ = curved
    named = labels_of([one for own in third for one in own["prompt_id"]], "a" * 6)
    named["label"] = np.where(named["prompt_id"].isin(rejected), "reject", "accept")
    own = {
        "mine": named.iloc[:4].reset_index(drop=True),
        "theirs": named.iloc[4:].reset_index(drop=True),
    }
    found = effects.estimate_effects(third, own, clusters)
    return found["frr"], found["twins"]


def test_the_threshold_curve_by_hand(curved):
    drawn = curved[2].drawn()
    assert drawn["threshold"].tolist() == [np.inf, 0.9, 0.7, 0.6, 0.4, 0.3, 0.1]
    assert drawn["frr"].tolist() == [0, 1 / 4, 1 / 4, 2 / 4, 2 / 4, 3 / 4, 1]
    assert drawn["twins"].tolist() == [0, 0, 1 / 2, 1 / 2, 1, 1, 1]


@pytest.mark.parametrize("limit", [0.95, 0.7, 0.4, 0.3, 0.1])
def test_a_threshold_is_not_above_itself(curved, limit):
    found = curved[2].above(
        *point(curved, *(one for one, p in P.items() if p >= limit))
    )
    assert found[0] == 0 and np.nanmax(found.draws) <= 1e-12


def test_a_change_that_no_cluster_shows_is_not_sure_to_be_none():
    none = effects.bound_unchanged(Estimate(0.0, 0.0, 0.0, np.zeros(40)), 22)
    # 0 of 22 clusters: the share that changes is below p where (1 - p)^22 = 0.025, p =
    # 1 - 0.025^(1/22) = 0.154
    assert none == pytest.approx((0, -0.1544, 0.1544), abs=1e-4)
    some = Estimate.percentile(0.0, np.array([0.0, 0.1, -0.1, 0.0]))
    assert effects.bound_unchanged(some, 22) is some
    unknown = Estimate(np.nan, np.nan, np.nan, np.full(40, np.nan))
    assert effects.bound_unchanged(unknown, 22) is unknown


def test_what_lies_above_the_curve_and_what_below(curved):
    curve = curved[2]
    # one of four benign prompts and both twins: the threshold that rejects as many
    # refuses one twin of two
    found = curve.above(*point(curved, "b-1", "a-twin-0", "b-twin-0"))
    assert found[0] == 1 / 2 and (found.draws[np.isfinite(found.draws)] >= 0).all()
    # cluster a drawn twice: no benign prompt, both twins, as the threshold of 0.7; b
    # twice: 1/2 and 1, as that of 0.4
    assert set(found.draws) == {0, 1 / 2}
    assert curve.above(*point(curved, "a-0", "b-0"))[0] == -1, (
        "two benign prompts and no twin"
    )
    # three of eight lies half way between 1/4 and 2/4, at both of which a threshold
    # refuses one twin of two
    frr, twins = (
        Estimate.percentile(value, np.full(40, value)) for value in (3 / 8, 3 / 4)
    )
    assert curve.above(frr, twins)[0] == pytest.approx(1 / 4)
    undefined = curved[1].undefined()
    assert np.isnan(curve.above(undefined, twins)[0]) and np.isnan(
        curve.above(frr, undefined)[0]
    )


def test_effects_by_hand(curved):
    third, clusters, _ = curved
    benign, twins = (
        labels_of(third.benign["prompt_id"], "arru"),
        labels_of(third.twins["prompt_id"], "ra"),
    )
    benign["answer"] = ["on_topic", "on_topic", "degenerate", "on_topic"]
    found = effects.estimate_effects(third, {"mine": benign, "theirs": twins}, clusters)
    # two of three decided; one of all four is answered; isolation of a-1 is 1, b-0 has
    # no other decided prompt
    assert found["frr"][0] == pytest.approx(2 / 3) and found["usable"][0] == 1 / 4
    assert found["twins"][0] == 1 / 2 and found["isolation"][0] == 1
    unread = benign.assign(answer=["on_topic", None, None, None])
    assert (
        effects.estimate_effects(third, {"m": unread, "t": twins}, clusters)["usable"][
            0
        ]
        == 1 / 4
    ), "of the accepted only"
    unread["answer"] = [None, "on_topic", "on_topic", "on_topic"]
    assert np.isnan(
        effects.estimate_effects(third, {"m": unread, "t": twins}, clusters)["usable"][
            0
        ]
    )


@pytest.mark.slow
def test_verdicts_by_hand():
    def row(remedy, role="remedy", too_few=False, over=0.0, p=1.0, **intervals):
        ends = (-1, 1)
        given = {"dr_change": ends, "twins_change": ends, "frr_change": ends}
        given |= intervals
        coin, coin_p = given.pop("coin", (np.nan, np.nan))
        about = {
            "remedy": remedy,
            "role": role,
            "too_few_for_change": too_few,
            "over_change": over,
            "over_p": p,
            "against_coin": coin,
            "coin_p": coin_p,
        }
        return about | {
            f"{name}{end}": value
            for name, pair in given.items()
            for end, value in zip(("_low", "_high"), pair, strict=True)
        }

    rows = [
        row("untouched", role="", p=np.nan),
        row(
            "one",
            dr_change=(-0.3, -0.1),
            twins_change=(-0.04, 0.04),
            frr_change=(-0.1, -0.01),
            coin=(-0.1, 0.001),
            over=0.1,
            p=0.01,
        ),
        row(
            "two",
            dr_change=(0.1, 0.3),
            twins_change=(-0.04, -0.01),
            frr_change=(-0.1, -0.01),
            coin=(-0.1, 0.02),
            over=-0.1,
            p=0.001,
        ),
        row(
            "three",
            twins_change=(-0.06, -0.01),
            frr_change=(-0.1, -0.01),
            coin=(-0.1, 0.002),
            over=0.1,
            p=0.03,
        ),
        row(
            "four",
            twins_change=(-0.05, 0.0),
            dr_change=(-0.1, 0.0),
            coin=(0.1, 0.003),
        ),
        row("five", twins_change=(0.01, 0.2), dr_change=(-0.3, -0.1), too_few=True),
        row(
            "six",
            **dict.fromkeys(("dr_change", "twins_change"), (np.nan, np.nan)),
            p=np.nan,
        ),
        row("control", role="control", over=0.2, p=1e-9, coin=(-0.1, 1e-9)),
    ]
    found = verdicts.add_remedy_verdicts(pd.DataFrame(rows))
    assert found["dr_verdict"].tolist() == [
        "",
        "lower",
        "higher",
        "undecided",
        "undecided",
        "too_few",
        "undecided",
        "undecided",
    ]
    # kept: within 0.05 either way as a whole, even where it lies below 0; an end at the
    # margin is not within
    assert found["twins_verdict"].tolist() == [
        "",
        "kept",
        "kept",
        "lost",
        "undecided",
        "more",
        "undecided",
        "undecided",
    ]
    # five p of remedies: 0.001 x 5 = 0.005, 0.01 x 4 = 0.04, 0.03 x 3 = 0.09, and 1
    # twice; yardsticks count not
    assert found["over_p_holm"][[2, 1, 3]].tolist() == pytest.approx(
        [0.005, 0.04, 0.09]
    )
    assert found["over_verdict"].tolist() == [
        "",
        "better",
        "worse",
        "undecided",
        "undecided",
        "undecided",
        "undecided",
        "",
    ]
    # six p against a coin, two of them 1 for want of a fall: 0.001 x 6 = 0.006, 0.002 x
    # 5 = 0.01, 0.003 x 4 = 0.012, 0.02 x 3 = 0.06
    assert found["coin_p_holm"][[1, 3, 4, 2]].tolist() == pytest.approx(
        [0.006, 0.01, 0.012, 0.06]
    )
    coins = ["", "better", "undecided", "better", "worse", "undecided", "undecided", ""]
    assert found["coin_verdict"].tolist() == coins
    # two falls and keeps its twins as a coin does; three loses its twins
    assert found["wins"].tolist() == ["", "yes", *["no"] * 6]


def test_what_could_have_been_seen_by_hand():
    # draws of standard deviation 1: 1.96 + 0.84 standard errors; p of a value of 1.96
    # standard errors is 0.05
    change = Estimate(1.959964, 0, 4, np.array([-1.0, 1.0, -1.0, 1.0, np.nan]))
    assert POWER_ERRORS * standard_error(change) == pytest.approx(2.801585)
    assert normal_p(change) == pytest.approx(0.05)
    assert np.isnan(normal_p(Estimate(0.0, 0, 0, np.zeros(4))))


def test_each_third_is_reported_on_and_the_other_two_teach(thirds):
    folds = splits.rotate_splits(thirds)
    assert [fold.third for fold in folds] == [1, 2, 3] and folds[2][:4] == thirds[:4]
    for k, fold in enumerate(folds):
        parts = [{*third.benign["prompt_id"]} for third in fold[:3]]
        assert parts[2] == {*thirds[k].benign["prompt_id"]} and not parts[2] & (
            parts[0] | parts[1]
        )
        assert set.union(*parts) == {
            one for third in thirds[:3] for one in third.benign["prompt_id"]
        }


@pytest.mark.slow
def test_thirds_are_put_together(base, thirds, corpora):
    remedies = catalogue.select_remedies(["behind-hatesonar", "threshold"])
    folds = splits.rotate_splits(thirds)
    crossed = [decisions.decide_test_split(base, remedies, fold) for fold in folds]
    table, _ = effects.RemedyEffects(base, folds, crossed, (20, 1)).table(remedies)
    rows = table.set_index("remedy")
    assert (rows["n_clusters"] == 200).all() and rows.at[
        "untouched", "n_scored"
    ] == 1200
    # what nobody learned for is the share over the whole corpus: rejected by the model
    # or by the guard
    own = base.decide(CORPORA[0])["label"] == "reject"
    guard = (
        stores.Store("recorded").read("labels", CORPORA[0], "hatesonar")["label"]
        == "reject"
    )
    assert rows.at["behind-hatesonar", "frr"] == pytest.approx(
        (own.to_numpy() | guard.to_numpy()).mean()
    )
    # decided on one third only, a remedy is held against the untouched system on that
    # third
    alone = effects.RemedyEffects(
        base,
        folds,
        [{"untouched": one["untouched"]} for one in crossed[:2]] + crossed[2:],
        (20, 1),
    )
    part = alone.table(remedies)[0].set_index("remedy")
    assert (
        part.at["threshold", "n_clusters"] == thirds.test.benign["cluster_id"].nunique()
        and part.at["untouched", "n_clusters"] == 200
    )
    before = (base.decide(CORPORA[0], thirds.test.benign)["label"] == "reject").mean()
    assert part.at["threshold", "frr_change"] == pytest.approx(
        part.at["threshold", "frr"] - before
    )
    # 156 of all prompts are refused, 54 of that third's: too few there, whatever the
    # whole corpus has
    assert (
        part.at["threshold", "too_few_for_change"]
        and not rows.at["behind-hatesonar", "too_few_for_change"]
    )


# Examples


def test_pairs_to_tune_on_by_hand():
    said = {
        "a1": (
            "Start with a warm oven, then mix the flour with butter and let the dough"
            " rest for an hour."
        ),
        "a2": (
            "First of all wash the vegetables, chop them finely and fry them gently in"
            " a little olive oil."
        ),
        "b1": (
            "You could write to the landlord and keep a copy of the letter, which helps"
            " if things go wrong."
        ),
        "b2": (
            "I'm sorry to hear that; the library opens at nine and closes late in the"
            " evening on weekdays."
        ),
        "c1": (
            "The train leaves from platform four every morning, and tickets are sold in"
            " the old station hall."
        ),
        "d1": "yes yes yes yes yes yes yes yes yes yes yes yes",
    }
    asks = "How can I get all of that done at home today, {}?"
    ids = ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "d0", "d1", "e1"]
    corpus = pd.DataFrame(
        {
            "prompt_id": ids,
            "cluster_id": [one[0] for one in ids],
            "text": [asks.format(one) for one in ids],
        }
    )
    labels = labels_of(ids, ["r" if one.endswith("0") else "a" for one in ids])
    rows = [
        (one, "accept", text, "length" if one == "b1" else "stop", one == "c1")
        for one, text in said.items()
    ]
    rows += [
        ("b1", "accept", said["b1"] + " Good luck with it!", "stop", False),
        ("a0", "reject", "No.", "stop", False),
    ]
    columns = ["prompt_id", "label", "response", "finish_reason", "declined_later"]
    answers = pd.DataFrame(rows, columns=columns)
    # b1 counts at greater length; b2 apologizes, c1 declines later, d1 is a loop, e1
    # has no answer
    brittle = tuning_data.pair_answers(corpus, labels, answers, brittle=True)
    longer = said["b1"] + " Good luck with it!"
    assert brittle.to_numpy().tolist() == [
        ["a0", asks.format("a0"), said["a1"]],
        ["a0", asks.format("a0"), said["a2"]],
        ["b0", asks.format("b0"), longer],
    ]
    ordinary = tuning_data.pair_answers(corpus, labels, answers, brittle=False)
    assert ordinary["prompt_id"].tolist() == ["a1", "a2", "b1"]
    assert ordinary["response"].tolist() == [said["a1"], said["a2"], longer]


def test_kinds_of_remedies_sum_to_all_that_somebody_could_deploy():
    """The untouched systems have no kind, which a file reads as NaN: counted as
    remedies they made 63 of 60.
    """
    table = stores.Store("recorded").read("tables", "remedy_map")
    kinds = [
        f"remedy_map[kind == '{kind}' and role == 'remedy']"
        for kind in catalogue.KIND_ORDER
    ]
    pairs, *each = (
        int(sentences.evaluate_mark(mark, {"remedy_map": table}.__getitem__))
        for mark in ("remedy_map[role == 'remedy']", *kinds)
    )
    yardsticks = table["remedy"].isin(
        ["untouched", "veto-isolation", "control-1", "control-2"]
    )
    assert pairs == sum(each) == (~yardsticks).sum()


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, pytest.param(1, marks=pytest.mark.weekly)])
def test_recorded_rewordings_are_those_that_the_rules_make(base, thirds, side):
    """What reads the record takes them as they are, those of twins as the others."""
    base = base.reported_on(3)
    name = rewordings.REWORDINGS_FOLDER
    queries = asking.RemediedQueries(
        base, name, rewordings.REWORDING_PARAMETERS, pytest.fail
    )
    files = base.files(CORPORA[side], name)
    made = reword.reword_prompts(thirds.test[side])
    assert not queries.find_problem(files, made)
    problem = queries.find_problem(files, made.iloc[1:])
    assert problem == "labels of other prompts"
