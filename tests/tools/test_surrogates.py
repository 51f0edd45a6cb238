"""A served system is scored with what another model's traces complete."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.analysis import surrogate
from paraguard_utils import stores
from paraguard_utils.analysis import pipeline, signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.signals import prob_shifts
from paraguard_utils.errors import Missing
from paraguard_utils.models import trace_store

SERVED = "x-served--safety"
MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m"
SURROGATE = "smollm2-135m-instruct-q4_1"
LISTS = ("token_ids", "token_nll", "next_ids", "next_logprobs")
HIDDEN = {"full": (), "answer tokens": LISTS[:2], "text": LISTS}


def shifts(frame):
    """ProbShift between the first twenty prompts and the next twenty."""
    return prob_shifts(
        frame["next_ids"],
        frame["next_logprobs"],
        frame["tail_mass"].to_numpy(),
        np.arange(20),
        np.arange(20, 40),
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", surrogate.DISCLOSURE_LEVELS)
def test_a_served_system_is_scored_with_what_a_surrogate_completes(
    level, results, recorded_corpus
):
    record = stores.CorpusFiles(stores.Store(stores.RECORDED), "paraguard_mini")
    live = stores.CorpusFiles(stores.Store("test"), "paraguard_mini")
    prompts = recorded_corpus.head(60)
    ids = prompts["prompt_id"]
    own = record.read("traces", f"{MODEL}--safety")
    returned = own.assign(**{name: [np.array([])] * len(own) for name in HIDDEN[level]})
    if level == "text":
        returned["tail_mass"] = 1.0
    meta = stores.read_meta(record.path("traces", f"{MODEL}--safety"))
    live.write("traces", SERVED, frame=returned, meta=meta | {"level": level})
    completed, model = pipeline.read_scoring_traces(live, SERVED, prompts)
    assert model == SURROGATE, "from the record: the live store has no other model"
    other = surrogate.align_traces(record.read("traces", f"{SURROGATE}--safety"), ids)
    own = surrogate.align_traces(own, ids)
    words = own if level == "full" else other
    first = other if level == "text" else own
    np.testing.assert_allclose(
        signals.trace_perplexity(completed), signals.trace_perplexity(words), rtol=1e-6
    )
    np.testing.assert_allclose(shifts(completed), shifts(first))
    assert all(map(np.array_equal, completed["token_ids"], other["token_ids"]))
    assert completed["response"].tolist() == own["response"].tolist()
    labels = surrogate.align_traces(record.read("labels", f"{MODEL}--safety"), ids)
    clusters = System.of(SERVED, prompts, labels).clusters
    tokens = live.store.read_earlier("tokens", model)
    drifts = DriftCache(tokens)
    system = System(SERVED, prompts, labels, clusters, traces=completed, drifts=drifts)
    scored = pipeline.compute_scores(live, system)
    rejected = scored.scores["label"] == "reject"
    assert scored.pairs["drift"].notna().all()
    assert scored.scores.loc[rejected, "ci"].notna().any()


def test_a_served_system_without_a_surrogate_says_what_to_run(results, recorded_corpus):
    live = stores.CorpusFiles(stores.Store("test"), "other")
    corpus = recorded_corpus.head(3).assign(text=["a b", "c d", "e f"])
    record = stores.CorpusFiles(stores.Store(stores.RECORDED), "paraguard_mini")
    meta = stores.read_meta(record.path("traces", f"{MODEL}--safety"))
    context = trace_store.context_from_meta(meta, "x")
    rows = corpus[["prompt_id"]].assign(
        key=[context.key(text) for text in corpus["text"]],
        response="no",
        finish_reason="stop",
        user_start=0,
        user_end=0,
        tail_mass=1.0,
        **{name: [np.array([])] * len(corpus) for name in LISTS},
    )
    live.write(
        "traces", SERVED, frame=pd.DataFrame(rows), meta=meta | {"level": "text"}
    )
    with pytest.raises(Missing, match="model=smollm2-135m-instruct"):
        pipeline.read_scoring_traces(live, SERVED, corpus)
