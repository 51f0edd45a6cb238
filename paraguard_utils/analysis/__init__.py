"""Estimate what notebooks 02 to 05 show, from a `System` and its files.

`system` holds a system's decisions; `signals` compares its prompts; `confusion` makes
the rows of Table 1, `cohorts` Table 2 and `guarded` Table 3; `pipeline` reads and
writes files. Ours, beside the paper: `wording`.

CI of a refusal: `pipeline.score_system`, `signals.compute_pairs`,
`signals.score_pairs`, `confusion.score_prompts`; `worked` shows one refusal's. An
interval of FRR: `confusion.rate_row`, `System.frr`,
`core.estimates.ClusterBootstrap.share`, which resamples by `ClusterBootstrap.counts`,
and is exact where nothing or everything is refused. DR: `System.dr`,
`core.disagreement.estimate_disagreement`.
"""
