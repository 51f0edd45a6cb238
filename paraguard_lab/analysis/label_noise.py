"""Correct systems' rates for the errors of labels that blind readings measured
(`core.label_noise`).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_lab.core.label_noise import JEFFREYS_PRIOR, correct_label_noise
from paraguard_utils.analysis import evaluation
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.labels.annotations import compare_with_annotations
from paraguard_utils.schemas import Corpus, Labels, Table


def correct_rates(
    corpus: Corpus,
    labels: Mapping[str, Labels],
    both: pd.DataFrame,
    clusters: ClusterBootstrap,
) -> Table:
    """Correct the rates of all systems that were read.

    Labels are by system, in corpus order, and `both` comes from
    `readings.join_readings`. Columns: system, noisy; frr_labelled and dr_labelled; with
    intervals frr, dr and usable, the share of prompts with a usable answer.
    """
    known, rows = compare_with_annotations(both).set_index("system"), []
    for system in (system for system in labels if system in known.index):
        measured, own = known.loc[system], labels[system]
        decided = evaluation.count_label_decisions(corpus, own)
        (hits, read), missed, precision = (
            (
                round(float(np.nan_to_num(measured[name])) * measured[side]),
                int(measured[side]),
            )
            for name, side in (
                ("usable", "acceptances"),
                ("missed", "acceptances"),
                ("precision", "rejections"),
            )
        )
        found = correct_label_noise(clusters, decided, precision, missed)
        scored, accepted = (
            evaluation.is_scored(own),
            (own["label"] == "accept").to_numpy(),
        )
        share = clusters.share(
            corpus["cluster_id"].to_numpy()[scored], accepted[scored]
        )
        draws = np.random.default_rng(SEED).beta(
            hits + JEFFREYS_PRIOR, read - hits + JEFFREYS_PRIOR, len(share.draws)
        )
        found["usable"] = Estimate.percentile(
            share[0] * hits / read if read else np.nan, share.draws * draws
        )
        dr = disagreement.disagreement_parts(decided["n"], decided["rejected"])[2]
        labelled = {
            "frr_labelled": float(decided["rejected"].sum() / decided["n"].sum()),
            "dr_labelled": dr,
        }
        rows.append(
            {"system": system, "noisy": bool(measured["noisy"])}
            | labelled
            | to_columns(found)
        )
    return pd.DataFrame(rows)
