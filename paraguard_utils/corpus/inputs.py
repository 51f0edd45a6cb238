"""Seeds and candidates of a corpus: read from files, or written by rules or a model
(`docs/method.md`, Corpus).
"""

import sys
from functools import partial

import pandas as pd

from paraguard_lab.corpus import benchmarks, fluency, paraphrase
from paraguard_lab.corpus.writer import PARAPHRASE_DECODING, Authors
from paraguard_utils import paths, unsafe
from paraguard_utils.corpus import gates
from paraguard_utils.errors import Missing
from paraguard_utils.models import encoder, loading
from paraguard_utils.paths import resolve_input
from paraguard_utils.schemas import Seeds
from paraguard_utils.settings import Gates
from paraguard_utils.stores import Store, check_fields, frame_hash, read_file, read_meta

RULES_GENERATOR = (  # generator of candidates that rules write; also given as an input
    "rules"
)
N_COMPARED_SEEDS = 20  # seeds on which generators are compared


def read_seeds_and_candidates(
    store: Store,
    corpus_name: str,
    seeds: str,
    candidates: str,
    limits: Gates = Gates(),
    authors: Authors | None = None,
) -> tuple[Seeds, pd.DataFrame]:
    """Read and check a seeds file, and read or write candidates (the columns of a
    generated file).

    Both are paths, relative to the caller's folder or to the project, in which
    `{corpus}` is the corpus's name. `candidates` may be "rules", to have them written
    by rules; a writer among the authors writes them whatever it says. Rules and writers
    write for the seeds that pass the sanity gates. Raise UserError where a file is
    missing or does not fit, a candidate names a seed that is not there, or a model
    would read requests that ask for harm.
    """
    seed_rows = read_seeds(corpus_name, seeds)
    if authors and (authors.writer or authors.judge):
        unsafe.refuse_unsafe(seed_rows, "candidates written or judged by a model")
    sane = seed_rows[
        [reason == "" for reason in gates.sanity_reasons(seed_rows["text"], limits)]
    ]
    if candidates == RULES_GENERATOR:
        return seed_rows, paraphrase.paraphrase_by_rules(sane).assign(
            generator=RULES_GENERATOR
        )
    if authors and authors.writer:
        return seed_rows, authors.write(store, corpus_name, sane)
    seed_file, candidate_file = (
        resolve_input(name.replace("{corpus}", corpus_name))
        for name in (seeds, candidates)
    )
    rows = read_file(candidate_file, "candidates")
    lacks = f"is not in {paths.display_path(seed_file)}; add the seed or remove the row"
    check_fields(
        candidate_file,
        rows["seed_id"],
        rows["seed_id"].isin(seed_rows["seed_id"]),
        lacks,
    )
    # A prompt is asked as it stands, so texts are stripped.
    return seed_rows, rows.assign(
        text=rows["text"].str.strip(), generator="authored", rule="authored"
    )


def read_seeds(corpus_name: str, seeds: str) -> Seeds:
    """Read and check the seeds file of `read_seeds_and_candidates`.

    Topical is "unstated" where it lacks that.
    """
    rows = read_file(resolve_input(seeds.replace("{corpus}", corpus_name)), "seeds")
    return rows.assign(
        text=rows["text"].str.strip(), topical=rows.get("topical", "unstated")
    )


def sample_compared_seeds(seeds: Seeds) -> Seeds:
    """Return the seeds on which generators are compared: a stratified sample, in the
    order of their ids.
    """
    return (
        benchmarks.order_by_strata(seeds)
        .head(N_COMPARED_SEEDS)
        .sort_values("seed_id")
        .reset_index(drop=True)
    )


def generate_candidates(
    store: Store, corpus_name: str, seeds: Seeds, paraphraser: str
) -> tuple[Seeds, pd.DataFrame]:
    """Return a stratified sample of `N_COMPARED_SEEDS` seeds and what the rules and a
    model write for it.

    A live store writes, the recorded one reads what was written. `paraphraser` is a
    model's name, to have the rules and the model write; "rules", for rules only; or "",
    for what the store has, which may be no rows. Raise Missing where the recorded store
    has none by this model, or for other seeds.
    """
    sample = sample_compared_seeds(seeds)
    meta = {"seeds": frame_hash(sample), "rules": paraphrase.rules_digest()}
    meta |= {"paraphraser": paraphraser} if paraphraser else {}
    there = meta.items() <= read_meta(store.path("generated", corpus_name)).items()
    if paraphraser and not store.recorded:
        written = [
            paraphrase.paraphrase_by_rules(sample).assign(generator=RULES_GENERATOR)
        ]
        if paraphraser != RULES_GENERATOR:
            model = loading.load_model(loading.resolve_model(paraphraser))
            asked = (
                store,
                corpus_name,
                sample,
                model,
                "compared",
                {"": PARAPHRASE_DECODING},
            )
            written.append(
                paraphrase.paraphrase_by_model(*asked).assign(generator=model.name)
            )
        store.write(
            "generated",
            corpus_name,
            frame=pd.concat(written, ignore_index=True),
            meta=meta,
        )
    elif paraphraser and not there:
        raise Missing(
            "the recorded texts are for other seeds, rules or another model; run"
            " A2_writers in a live store"
        )
    elif not there:
        print(
            "generators are not compared: that takes a live store and"
            " paraphraser=rules, or =MODEL",
            file=sys.stderr,
        )
        return sample, pd.DataFrame(columns=["generator"])
    return sample, store.read("generated", corpus_name)


def select_losses(candidates: str) -> fluency.Losses | None:
    """Return the function that tells the gates how fluent candidates are.

    None where rules do not write them.
    """
    return fluency.compute_losses if candidates == RULES_GENERATOR else None


def make_embedder(store: Store, corpus_name: str) -> encoder.Embed:
    """Return a function from texts to sentence vectors that reads and fills a store."""
    return partial(encoder.stored_vectors, store, corpus_name)
