"""Compare what rules and models write for the same seeds (`docs/method.md`, Corpus)."""

import sys

import pandas as pd

from paraguard_lab.core.inference import exact_share
from paraguard_lab.corpus import benchmarks, paraphrase, writer
from paraguard_lab.corpus.fidelity import iterate_groups
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.core.strategies import STRATEGIES
from paraguard_utils.corpus.gates import passes_alone
from paraguard_utils.errors import Missing
from paraguard_utils.models import loading
from paraguard_utils.schemas import Seeds, Table
from paraguard_utils.stores import CorpusFiles, frame_hash, read_meta

JUDGE_REASONS = ("intent", "harm", "unparsed")  # reasons that a judge gives
N_COMPARED_SEEDS = 20  # seeds on which generators are compared


def sample_compared_seeds(seeds: Seeds) -> Seeds:
    """Return a stratified sample of `N_COMPARED_SEEDS` seeds, in the order of ids."""
    sample = benchmarks.order_by_strata(seeds).head(N_COMPARED_SEEDS)
    return sample.sort_values("seed_id").reset_index(drop=True)


def generate_candidates(
    files: CorpusFiles, seeds: Seeds, paraphraser: str
) -> tuple[Seeds, pd.DataFrame]:
    """Return a sample of seeds and what the rules and a model write for it.

    A live store writes; the recorded one reads what was written.

    Parameters
    ----------
    files : CorpusFiles
    seeds : pandas.DataFrame
    paraphraser : str
        A model's name, to have the rules and the model write; "rules", for rules only;
        or "", for what the store has, which may be no rows.

    Returns
    -------
    sample : pandas.DataFrame
        As from `sample_compared_seeds`.
    candidates : pandas.DataFrame
        seed_id, strategy, text, generator, rule.

    Raises
    ------
    Missing
        The recorded store has none by this model, or for other seeds.
    """
    sample = sample_compared_seeds(seeds)
    meta = {"seeds": frame_hash(sample), "rules": paraphrase.rules_digest()}
    if paraphraser:
        meta["paraphraser"] = paraphraser
        if not files.recorded:
            written = _write_candidates(files, sample, paraphraser)
            files.write("generated", frame=written, meta=meta)
    known = read_meta(files.path("generated"))
    if meta.items() <= known.items():
        return sample, files.read("generated")
    if paraphraser:
        raise Missing(
            "the recorded texts are for other seeds, rules or another model; run"
            " A2_writers in a live store"
        )
    print(
        "generators are not compared: that takes a live store and paraphraser=rules,"
        " or =MODEL",
        file=sys.stderr,
    )
    return sample, pd.DataFrame(columns=["generator"])


def _write_candidates(
    files: CorpusFiles, seeds: Seeds, paraphraser: str
) -> pd.DataFrame:
    """Have the rules, and the model if one is named, write candidates."""
    by_rules = paraphrase.paraphrase_by_rules(seeds)
    by_rules["generator"] = paraphrase.RULES_GENERATOR
    if paraphraser == paraphrase.RULES_GENERATOR:
        return by_rules
    model = loading.load_model(loading.resolve_model(paraphraser))
    decodings = {"": writer.PARAPHRASE_DECODING}
    by_model = writer.paraphrase_by_model(files, seeds, model, "compared", decodings)
    by_model["generator"] = model.name
    return pd.concat([by_rules, by_model], ignore_index=True)


def count_complete_clusters(candidates: pd.DataFrame, n_seeds: int) -> Table:
    """Count the seeds for which each generator makes a complete cluster.

    Parameters
    ----------
    candidates : pandas.DataFrame
        Each generator's, judged by themselves.
    n_seeds : int
        Seeds that each generator was given.

    Returns
    -------
    pandas.DataFrame
        generator, complete, seeds, share with its exact 95 % interval.
    """
    rows = []
    for name, written in candidates.groupby("generator", sort=False):
        complete = written.loc[written["reason"] == "", "seed_id"].nunique()
        counts = {"generator": name, "complete": complete, "seeds": n_seeds}
        rows.append(counts | exact_share(complete, n_seeds))
    return pd.DataFrame(rows)


def count_passing(candidates: pd.DataFrame) -> Table:
    """Count the judged candidates that pass alone, by generator and strategy.

    Returns generator, strategy ("all" last), written, passing, share (of written) with
    its 95 % interval over seeds.
    """
    rows = []
    for name, written in candidates.groupby("generator", sort=False):
        clusters = ClusterBootstrap(written["seed_id"])
        for strategy, chosen in iterate_groups(written, "strategy", STRATEGIES):
            passing = passes_alone(chosen)
            counts = {
                "generator": name,
                "strategy": strategy,
                "written": len(chosen),
                "passing": passing.sum(),
            }
            share = clusters.share(chosen["seed_id"], passing)
            rows.append(counts | to_columns({"share": share}))
    return pd.DataFrame(rows)
