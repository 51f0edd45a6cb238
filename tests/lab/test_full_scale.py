"""What is published of a corpus whose texts are not: rates by benchmark by hand, and a
store described.
"""

import shutil

import pandas as pd
import pytest

from paraguard_lab.report import full_scale
from paraguard_utils import paths, stores
from paraguard_utils.analysis.system import System
from paraguard_utils.settings import CORPUS

SYSTEM = "smollm2-135m-instruct-q4_1--safety"


def test_rates_by_benchmark_by_hand():
    # a: one cluster refused, one accepted: meaning decides. b: each cluster decided
    # both ways.
    corpus = pd.DataFrame(
        {"cluster_id": list("112233445566"), "source": ["a"] * 4 + ["b"] * 8}
    )
    label = [*["reject", "reject", "accept", "accept"], *["reject", "accept"] * 4]
    labels = pd.DataFrame({"prompt_id": range(12), "label": label})
    rows = full_scale.estimate_by_source(System.of("t", corpus, labels))
    rows = rows.set_index("source")
    assert rows["n_prompts"].to_dict() == {"a": 4, "b": 8, "all": 12}
    assert rows.loc["a", "dr"] == 0  # within 0 of 2 pairs, between 4 of 4
    # within 4 of 4 pairs differ; between: each prompt meets 6 of others, 3 of them
    # decided otherwise: 1 / 0.5
    assert rows.loc["b", "dr"] == pytest.approx(2)
    # within 4 of 6; between 12 x 10 ordered pairs: 2 x 6 x 6 differ in all, 2 x 4 of
    # them within: 64 of 120
    assert rows.loc["all", "dr"] == pytest.approx((4 / 6) / (64 / 120))
    assert rows["frr"].tolist() == [0.5, 0.5, 0.5] and rows["too_few_for_dr"].all()


@pytest.fixture
def scored(results):
    """A live store with a recorded system, as if its corpus were another one."""
    store = stores.Store("test")
    for kind, name in (
        ("corpus", ("public",)),
        ("traces", ("public", SYSTEM)),
        ("labels", ("public", SYSTEM)),
    ):
        source = stores.Store(stores.RECORDED).path(
            kind, *(CORPUS if part == "public" else part for part in name)
        )
        system = store.output_path(kind, *name)
        system.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, system)
        if kind != "corpus":
            shutil.copyfile(f"{source}.meta.json", f"{system}.meta.json")
    for table, _ in full_scale.NOTEBOOK_TABLES.values():
        frame = stores.Store(stores.RECORDED).read("tables", table)
        own = (
            frame[frame["system"].eq(SYSTEM)].assign(store="test")
            if "system" in frame
            else frame
        )
        store.write(
            "tables",
            table,
            frame=own,
            meta={"parameters": {"corpus": "public"}, "inputs": {}},
        )
    return store


@pytest.mark.slow
def test_a_store_is_described_without_a_word_of_its_texts(scored, command):
    printed = command("corpus", "describe", "--store", "test").printed
    assert "OR-Bench" not in printed and "paraguard" in printed, (
        "the sources are those of the corpus"
    )
    for name in full_scale.FULL_SCALE_TABLES:
        frame = scored.read("tables", f"public_{name}")
        assert len(frame) and "store" not in frame
        assert not [
            column
            for column in frame
            if frame[column].astype(str).str.len().max() > 120
        ]
    known = (
        stores.Store(stores.RECORDED)
        .read("tables", "table1_systems")
        .set_index(["system", "interpretation"])
    )
    sources = scored.read("tables", "public_sources").set_index("source")
    assert sources.loc["all", "dr"] == pytest.approx(
        known.loc[(SYSTEM, "relative"), "dr"], abs=1e-4
    )
    assert scored.read("tables", "public_systems")["gb"].gt(0).all()


def test_tables_of_another_corpus_are_one_clear_error(scored, command):
    path = scored.path("tables", "table2_cohorts")
    meta = {"parameters": {"corpus": CORPUS}, "inputs": {}}
    scored.write(
        "tables",
        "table2_cohorts",
        frame=scored.read("tables", "table2_cohorts"),
        meta=meta,
    )
    error = command("corpus", "describe", "--store", "test").error
    assert (
        paths.display_path(path) in error
        and "paraguard run 04 --store test --corpus public" in error
    )
