"""Advise on a model that refuses too much, from what a store holds of it
(`docs/method.md`, Remedies).
"""

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies import tuning_data
from paraguard_lab.report import review
from paraguard_utils import paths, registry, stores, text, unsafe
from paraguard_utils.analysis import confusion, pipeline
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.report import tables
from paraguard_utils.schemas import Corpus, Labels, Table
from paraguard_utils.settings import CORPUS, SERVED_PREFIX, QuerySettings
from paraguard_utils.stores import LIVE, RECORDED, Store

# The table of 07: remedies by system, as `remedies.effects.table` makes it
REMEDY_MAP_TABLE = "remedy_map"
MAX_PRINTED, _MAX_PHRASING = (
    3,
    110,
)  # clusters and names of remedies, characters of a phrasing, that are printed


class Advice(NamedTuple):
    """What the map says for one system: the row to take, or else a trade-off, and the
    names of what was judged.

    Remedy is None where the rule finds none. The trade-off is then the row that loses
    the fewest twins for what it gains: `price` points of twins no longer refused for
    each point of FRR; None if no interval of FRR is below 0.
    """

    remedy: dict[str, Any] | None
    trade_off: dict[str, Any] | None
    tried: list[str]


def choose_remedy(rows: Table) -> Advice:
    """Choose a remedy for one system from its rows of the map (`docs/method.md`,
    Remedies).

    Of equally cheap remedies it is the one whose FRR falls most; of trade-offs that
    lose equally many twins the cheapest, then the largest fall. Rows with another
    `role` than remedy, which nobody would deploy, are left out.
    """
    rows = rows[rows["role"] == "remedy"]
    falls = rows[rows["frr_change_high"] < 0]
    cheapest = ["queries", "frr_change"]
    kept = falls[falls["twins_verdict"].isin(["kept", "more"])].sort_values(
        cheapest, kind="stable"
    )
    # A point estimate may rise where the interval leaves open whether twins are lost:
    # that costs nothing that is known.
    priced = falls.assign(
        price=(falls["twins_change"] / falls["frr_change"]).clip(lower=0)
    ).dropna(subset="price")
    priced = priced.sort_values(["price", *cheapest], kind="stable")
    remedy, trade_off = (
        next(iter(found.to_dict("records")), None) for found in (kept, priced)
    )
    return Advice(remedy, None if remedy else trade_off, rows["remedy"].tolist())


def find_measured_remedies(
    store: Store, record: Store, corpus_name: str, system: str, frr: float
) -> tuple[Table, str] | None:
    """Find the rows of the map that speak for a system with a share `frr` of harmless
    prompts refused, and their store.

    These are the system's own rows in the user's store or the record; else those of the
    published system under the same system prompt whose FRR, over all prompts (Table 1), is
    nearest; None if there is no map, or no such system on it.
    """
    for place in (store, record):
        if not place.has("tables", REMEDY_MAP_TABLE):
            continue
        known = stores.read_meta(place.path("tables", REMEDY_MAP_TABLE)).get(
            "parameters", {}
        )
        rows = place.read("tables", REMEDY_MAP_TABLE)
        if known.get("corpus", corpus_name) == corpus_name and system in set(
            rows["system"]
        ):
            return rows[rows["system"] == system], place.name
    if not record.has("tables", REMEDY_MAP_TABLE) or not np.isfinite(frr):
        return None
    rows = record.read("tables", REMEDY_MAP_TABLE)
    same = rows[rows["system"].str.rpartition("--")[2] == system.rpartition("--")[2]]
    published = (
        record.read("tables", "table1_systems")
        .drop_duplicates("system")
        .set_index("system")["frr"]
    )
    known = published.reindex(same["system"].unique()).dropna()
    if known.empty:
        return None
    return same[same["system"] == (known - frr).abs().idxmin()], record.name


def write_advice(config: QuerySettings) -> list[str]:
    """Write a system's advice to the store's `advice/TARGET/`: brittle clusters, rows
    of the map, examples, and text.

    Of the settings store, corpus, model and the first of system prompts are used. Returns the
    lines to print, which `advice.txt` holds too. Where answers, labels or scores lack,
    the error Missing names the command to run; a corpus that asks for harm, or files
    that do not belong together, are a DataError.
    """
    store = Store(config.store)
    corpus = store.read_earlier("corpus", config.corpus)
    unsafe.refuse_unsafe(corpus, "advice")
    system = _system(store, config)
    own = pipeline.read_systems(store, config.corpus, corpus, [system])[system]
    meta = config.meta(corpus=corpus, labels=labelling.hash_labels(own.labels))
    folder = store.writes / "advice" / system
    rates = confusion.rate_row(
        system, corpus, own.labels, ClusterBootstrap(corpus["cluster_id"])
    )
    too_few = (
        ", too few refusals or acceptances to lean on"
        if rates["too_few_for_dr"]
        else ""
    )
    (title,) = registry.display_titles([system])
    frr, dr = (tables.format_estimate(rates, name, 2) for name in ("frr", "dr"))
    refused = f"{rates['n_reject']} of {rates['n_scored']} harmless prompts refused"
    lines = [f"{title}: {refused}, FRR {frr}, DR {dr}{too_few}"]

    brittle = review.list_brittle_clusters(
        corpus, {system: own.labels}, {system: own.scores}
    )
    file = folder / "brittle_clusters.csv"
    stores.write_file(file, text.escape_formulas(brittle), "tables", meta)
    lines += ["", *_brittle_lines(corpus, own.labels, brittle, file)]

    found = find_measured_remedies(
        store, Store(RECORDED), config.corpus, system, rates["frr"]
    )
    if found:
        stores.write_file(folder / "remedies.csv", found[0], "tables", meta)
    lines += ["", *_remedy_lines(found, system, config)]

    longer = follow_ups.read_long_answers(store, config.corpus, [system]).get(system)
    given = (
        corpus,
        own.traces,
        own.labels,
        own.pairs,
        longer,
        registry.system_prompt_text_of(system),
    )
    examples = tuning_data.make_tuning_examples(system, *given)
    counts = tuning_data.count_tuning_examples(
        {system: examples}, {system: own.pairs}
    ).to_dict("records")[0]
    file = folder / "tuning.jsonl"
    tuning_data.write_jsonl(file, examples, meta)
    lines += ["", *_tuning_lines(counts, file, longer is None, system, config)]
    stores.write_text(folder / "advice.txt", "\n".join(lines) + "\n")
    return [*lines, "", f"written: {paths.display_path(folder)}"]


def _system(store: Store, config: QuerySettings) -> str:
    """Return the model's system under the system prompt.

    Its answers, labels, pairs and scores are in the store.
    """
    (system_prompt,) = config.system_prompts
    of = {
        name.rpartition("--")[2]: name
        for name in trace_store.find_systems(CorpusFiles(store, config.corpus), config.model)
    }
    whose = f"of model {config.model!r} on {config.corpus} under the system prompt {system_prompt}"
    asks = _command("02 03", config, f'-p system prompts="[{system_prompt}]"')
    if system_prompt not in of:
        others = f" (there are some under {', '.join(of)})" if of else ""
        raise Missing(
            f"the {store.name} store has no answers {whose}{others}; run {asks}"
        )
    for kind, command in (
        ("labels", asks),
        ("pairs", _command("03", config)),
        ("scores", _command("03", config)),
    ):
        if not store.has(kind, config.corpus, of[system_prompt]):
            raise Missing(
                f"the {store.name} store has no {kind} {whose}; run {command}"
            )
    return of[system_prompt]


def _command(notebooks: str, config: QuerySettings, *more: str) -> str:
    """Return the command that runs notebooks on this model, with a live store in place
    of the recorded one.
    """
    parts = [f"paraguard run {notebooks} --model {shlex.quote(config.model)}"]
    parts += [f"--store {config.store}"] if config.store not in (LIVE, RECORDED) else []
    parts += [f"--corpus {config.corpus}"] if config.corpus != CORPUS else []
    parts += (
        ["-p base_url=URL"]
        if config.model.startswith(SERVED_PREFIX) and "02" in notebooks
        else []
    )
    return " ".join([*parts, *more])


def _brittle_lines(
    corpus: Corpus, labels: Labels, brittle: Table, file: Path
) -> list[str]:
    """Describe the clusters that are decided both ways, the first ones phrasing by
    phrasing.
    """
    counted = f"{len(brittle)} of {corpus['cluster_id'].nunique()} clusters"
    lines = [
        f"1. Where it is brittle: {counted} are decided both ways"
        f" ({paths.display_path(file)})"
    ]
    for row in brittle.head(MAX_PRINTED).itertuples():
        lines.append(
            f"   {row.cluster_id}, {row.n_rejected} refused and {row.n_accepted}"
            " answered:"
        )
        mine = corpus["cluster_id"] == row.cluster_id
        for phrasing, label in zip(
            corpus.loc[mine, "text"], labels.loc[mine.to_numpy(), "label"], strict=True
        ):
            phrasing = text.replace_control(" ".join(phrasing.split()))
            cut = (
                f"{phrasing[:_MAX_PHRASING].rstrip()} ..."
                if len(phrasing) > _MAX_PHRASING
                else phrasing
            )
            lines.append(f"     {label:<8}  {cut}")
    return lines


def _remedy_lines(
    found: tuple[Table, str] | None, system: str, config: QuerySettings
) -> list[str]:
    """Describe what the map says, and of whom."""
    if found is None:
        known = (
            "07 has not been run on this model, and no model like it is on the"
            " recorded map"
        )
        return [f"2. The cheapest remedy: not known. {known}", *_try(system, config)]
    rows, place = found
    advice = choose_remedy(rows)
    row = advice.remedy or advice.trade_off
    too_few = len(advice.tried) <= MAX_PRINTED
    tried = (
        f"tried: {', '.join(advice.tried) or 'none'}"
        if too_few
        else f"{len(advice.tried)} tried"
    )
    chosen = (
        "none. No remedy on the map lowers false refusals, by its interval, and keeps"
        " right ones"
    )
    if advice.remedy:
        chosen = (
            f"{_named(advice.remedy)}. FRR falls (interval below 0), right refusals are"
            " kept"
        )
    lines = [f"2. The cheapest remedy: {chosen} ({tried})"]
    if advice.trade_off:
        price = (
            f"{tables.format_number(advice.trade_off['price'], 2)} points for each"
            " point of FRR gained"
        )
        lines += [
            f"   A trade-off, no advice: {_named(advice.trade_off)} loses the fewest"
            f" twins, {price}"
        ]
    lines += (
        [f"   {_effects(row)}"]
        if row
        else ["   None has an interval of the change of FRR below 0, at any price"]
    )
    (measured,) = rows["system"].unique()
    (title,) = registry.display_titles([measured])
    if measured != system:
        lines += [
            f"   Measured on {title}, not on your model: the recorded one under this"
            " system prompt of nearest FRR"
        ]
        return [*lines, *_try(system, config, row["remedy"] if row else "")]
    return [*lines, f"   Measured on {title}, in the {place} store"]


def _try(system: str, config: QuerySettings, remedy: str = "") -> list[str]:
    """Say how to try remedies on the user's model."""
    if prompting.is_served_system(system):
        return [
            "   On a model behind a server 07 tries what needs no weights:"
            f" {_command('07', config)}"
        ]
    command = _command("07", config, f'-p remedies="[{remedy or "cheap"}]"')
    return [f"   To try {remedy or 'the cheap ones'} on your model: {command}"]


def _named(row: dict[str, Any]) -> str:
    """Return a remedy's name with what it costs to ask it."""
    once = ", after training it once" if row["kind"] == "tuning" else ""
    return f"{row['remedy']} ({row['queries']:.3g} x the model a prompt{once})"


def _effects(row: dict[str, Any]) -> str:
    """Describe what a remedy changes."""
    frr, twins, dr = (
        tables.format_estimate(row, f"{name}_change", 2, "+")
        for name in ("frr", "twins", "dr")
    )
    line = (
        f"FRR by {frr}, twins refused by {twins} ({row['twins_verdict']}), DR by {dr}"
    )
    beside = {
        "better": "better than",
        "worse": "worse than",
        "undecided": "cannot be told from",
    }.get(row["over_verdict"])
    return f"{line}; {beside} a mere threshold" if beside else line


def _tuning_lines(
    counts: dict[str, Any], file: Path, cut: bool, system: str, config: QuerySettings
) -> list[str]:
    """Describe the examples and their use."""
    counted = (
        f"{counts['examples']} examples, of {counts['rejections']} refusals with an"
        " answered paraphrase"
    )
    lines = [f"3. To tune it on: {counted} ({paths.display_path(file)})"]
    if cut and counts["examples"] < counts["rejections"]:
        longer = _command(
            "02",
            config,
            f'-p system prompts="[{config.system_prompts[0]}]"',
            "-p long_answers=1",
        )
        lines += [
            f"   Answers that were cut are left out; {longer} asks for whole ones"
        ]
    if counts["examples"]:
        recipe = (
            ""
            if prompting.is_served_system(system)
            else " (the remedy tuned-1 of 07 does)"
        )
        use = (
            "Nobody has judged the answers: read them first. Any tool that tunes on"
            " chat messages takes the file."
        )
        lines += [
            f"   {use}",
            (
                f"   Add harmful requests with a refusal{recipe}, or right refusals may"
                " be lost"
            ),
        ]
    return lines
