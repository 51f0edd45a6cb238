"""Advise on a model that refuses too much, from what a store holds of it.

`docs/method.md` (Remedies) says by which rule a remedy is chosen.
"""

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies import tuning_data
from paraguard_lab.report import review
from paraguard_lab.served import is_served_system
from paraguard_lab.sheets import escape_formulas
from paraguard_tools.logs import names
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis import confusion, pipeline
from paraguard_utils.analysis.system import System
from paraguard_utils.errors import Missing
from paraguard_utils.labels import labelling
from paraguard_utils.models import trace_store
from paraguard_utils.report import tables
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS, SERVED_PREFIX, QuerySettings
from paraguard_utils.stores import LIVE, RECORDED, CorpusFiles, Store

# The table of 07: remedies by system, as `remedies.effects.table` makes it
REMEDY_MAP_TABLE = "remedy_map"
MAX_PRINTED = 3  # clusters that are printed
_MAX_PHRASING = 110  # characters of a phrasing that are printed


_BEFORE_TUNING = """\
   Nobody has judged the answers: read them first. Any tool that tunes on chat \
messages takes the file.
   Add harmful requests with a refusal, as the remedy tuned-1 of 07 does, or right \
refusals may be lost"""


class Advice(NamedTuple):
    """What the map says for one system.

    Attributes
    ----------
    remedy : dict or None
        The row to take; None if the rule finds none.
    trade_off : dict or None
        Without a remedy, the row that loses the fewest twins for what it gains: `price`
        points of twins no longer refused for each point of FRR. None if no interval of
        FRR is below 0.
    tried : list of str
        The names of the remedies that were judged.
    """

    remedy: dict[str, Any] | None
    trade_off: dict[str, Any] | None
    tried: list[str]


class MeasuredRemedies(NamedTuple):
    """Rows of the map about one system, and the name of the store that has them."""

    rows: Table
    store: str


def choose_remedy(rows: Table) -> Advice:
    """Choose a remedy for one system from its rows of the map.

    Of equally cheap remedies it is the one whose FRR falls most; of trade-offs that
    lose equally many twins the cheapest, then the largest fall. Rows with another
    `role` than remedy, which nobody would deploy, are left out.
    """
    rows = rows[rows["role"] == "remedy"]
    falls = rows[rows["frr_change_high"] < 0]
    # A point estimate may rise while the interval leaves open whether twins are lost:
    # that costs nothing that is known.
    price = (falls["twins_change"] / falls["frr_change"]).clip(lower=0)
    falls = falls.assign(price=price).sort_values(["queries", "frr_change"])
    remedies = falls[falls["wins"] == "yes"].to_dict("records")
    priced = falls.dropna(subset="price").sort_values("price", kind="stable")
    trade_offs = [] if remedies else priced.to_dict("records")
    remedy = next(iter(remedies), None)
    return Advice(remedy, next(iter(trade_offs), None), rows["remedy"].tolist())


def find_measured_remedies(
    files: CorpusFiles, record: Store, system: str, frr: float
) -> MeasuredRemedies | None:
    """Find the rows of the map that speak for a system.

    They are the system's own rows in the user's store or the record. Else they are
    those of the published system under the same system prompt whose FRR, over all
    prompts (Table 1), is nearest to `frr`, in [0, 1]. None if there is no map, or no
    such system on it.
    """
    for store in (files.store, record):
        if store.has("tables", REMEDY_MAP_TABLE):
            meta = stores.read_meta(store.path("tables", REMEDY_MAP_TABLE))
            corpus_name = meta.get("parameters", {}).get("corpus", files.name)
            remedies = store.read("tables", REMEDY_MAP_TABLE)
            rows = remedies[remedies["system"] == system]
            if corpus_name == files.name and len(rows):
                return MeasuredRemedies(rows, store.name)
    if not record.has("tables", REMEDY_MAP_TABLE) or not np.isfinite(frr):
        return None
    rows = record.read("tables", REMEDY_MAP_TABLE)
    system_prompt = system.rpartition("--")[2]
    rows = rows[rows["system"].str.rpartition("--")[2] == system_prompt]
    table1 = record.read("tables", "table1_systems").drop_duplicates("system")
    published = table1.set_index("system")["frr"]
    known = published.reindex(rows["system"].unique()).dropna()
    if known.empty:
        return None
    nearest = (known - frr).abs().idxmin()
    return MeasuredRemedies(rows[rows["system"] == nearest], record.name)


def write_advice(config: QuerySettings) -> list[str]:
    """Write a system's advice to the store's `advice/SYSTEM/`.

    It is brittle clusters, rows of the map, examples to tune on, and text. Of the
    settings store, corpus, model and the first of system_prompts are used.

    Returns
    -------
    list of str
        The lines to print, which `advice.txt` holds too.

    Raises
    ------
    Missing
        If answers, labels or scores are not in the store; it names the command to run.
    DataError
        If a corpus asks for harm, or files do not belong together.
    """
    files = CorpusFiles(Store(config.store), config.corpus)
    unsafe.refuse_unsafe(files.prompts, "advice")
    name = _find_system(files, config)
    system = pipeline.read_systems(files, [name])[name]
    meta = config.meta(
        corpus=files.prompts, labels=labelling.hash_labels(system.labels)
    )
    folder = files.store.writes / "advice" / name
    rates = confusion.rate_row(system)

    brittle = review.list_brittle_clusters([system])
    brittle_file = folder / "brittle_clusters.csv"
    stores.write_file(brittle_file, escape_formulas(brittle), "tables", meta)

    measured = find_measured_remedies(files, Store(RECORDED), name, rates["frr"])
    if measured:
        stores.write_file(folder / "remedies.csv", measured.rows, "tables", meta)

    longer = follow_ups.read_long_answers(files, [name]).get(name)
    system_prompt = registry.read_system_prompt(name.rpartition("--")[2])
    examples = tuning_data.make_tuning_examples(system, longer, system_prompt)
    tuning_file = folder / "tuning.jsonl"
    tuning_data.write_jsonl(tuning_file, examples, meta)
    pairs = system.pairs[system.pairs["same_cluster"]]
    n_rejections = pairs.loc[pairs["centre_label"] == "reject", "centre_id"].nunique()

    lines = [
        _describe_rates(name, rates),
        "",
        *_describe_brittle(system, brittle, brittle_file),
        "",
        *_describe_remedies(measured, name, config),
        "",
        f"3. To tune it on: {len(examples)} examples, of {n_rejections} refusals with"
        f" an answered paraphrase ({paths.display_path(tuning_file)})",
    ]
    if longer is None and len(examples) < n_rejections:
        prompts = f'-p system_prompts="[{config.system_prompts[0]}]"'
        command = _command("A0", config, prompts, "-p long_answers=1")
        lines.append(
            f"   Answers that were cut are left out; {command} asks for whole ones"
        )
    if examples:
        lines.append(_BEFORE_TUNING)
    stores.write_text(folder / "advice.txt", "\n".join(lines) + "\n")
    return [*lines, "", f"written: {paths.display_path(folder)}"]


def _find_system(files: CorpusFiles, config: QuerySettings) -> str:
    """Return the model's system under the system prompt.

    Raise Missing unless its answers, labels, pairs and scores are in the store.
    """
    system_prompt = config.system_prompts[0]
    systems = {
        name.rpartition("--")[2]: name
        for name in trace_store.find_systems(files, config.model)
    }
    name = systems.get(system_prompt, "")
    query = _command("02 03", config, f'-p system_prompts="[{system_prompt}]"')
    score = _command("03", config)
    commands = {"answers": query, "labels": query, "pairs": score, "scores": score}
    for kind, command in commands.items():
        if not name or not files.has("traces" if kind == "answers" else kind, name):
            others = f" (there are some under {', '.join(systems)})" if systems else ""
            raise Missing(
                f"the {files.store.name} store has no {kind} of model {config.model!r}"
                f" on {config.corpus} under the system prompt {system_prompt}"
                f"{'' if name else others}; run {command}"
            )
    return name


def _command(notebooks: str, config: QuerySettings, *more: str) -> str:
    """Return the command that runs notebooks on this model, in a live store."""
    parts = [f"paraguard run {notebooks} --model {shlex.quote(config.model)}"]
    if config.store not in (LIVE, RECORDED):
        parts.append(f"--store {config.store}")
    if config.corpus != CORPUS:
        parts.append(f"--corpus {config.corpus}")
    is_query = "02" in notebooks or "A0" in notebooks
    if config.model.startswith(SERVED_PREFIX) and is_query:
        parts.append("-p base_url=URL")
    return " ".join([*parts, *more])


def _describe_rates(system: str, rates: dict[str, Any]) -> str:
    """Describe how often a system refuses."""
    title = registry.display_titles([system])[0]
    frr = tables.format_estimate(rates, "frr", 2)
    dr = tables.format_estimate(rates, "dr", 2)
    line = (
        f"{title}: {rates['n_reject']} of {rates['n_scored']} harmless prompts refused,"
        f" FRR {frr}, DR {dr}"
    )
    if rates["too_few_for_dr"]:
        line += ", too few refusals or acceptances to lean on"
    return line


def _describe_brittle(system: System, brittle: Table, file: Path) -> list[str]:
    """Describe the clusters that are decided both ways, the first ones in detail."""
    cluster_ids = system.prompts["cluster_id"]
    lines = [
        f"1. Where it is brittle: {len(brittle)} of {cluster_ids.nunique()} clusters"
        f" are decided both ways ({paths.display_path(file)})"
    ]
    for row in brittle.head(MAX_PRINTED).itertuples():
        lines.append(
            f"   {names.show_name(row.cluster_id)}, {row.n_rejected} refused and"
            f" {row.n_accepted} answered:"
        )
        inside = (cluster_ids == row.cluster_id).to_numpy()
        phrasings = system.prompts.loc[inside, "text"]
        labels = system.labels.loc[inside, "label"]
        for phrasing, label in zip(phrasings, labels, strict=True):
            line = names.show_name(" ".join(phrasing.split()), _MAX_PHRASING)
            lines.append(f"     {label:<8}  {line}")
    return lines


def _describe_remedies(
    measured: MeasuredRemedies | None, system: str, config: QuerySettings
) -> list[str]:
    """Describe what the map says, and of whom."""
    if measured is None:
        return [
            "2. The cheapest remedy: not known. 07 has not been run on this model, and"
            " no model like it is on the recorded map",
            _suggest_trial(system, config),
        ]
    advice = choose_remedy(measured.rows)
    row = advice.remedy or advice.trade_off
    chosen = (
        "none. No remedy on the map lowers false refusals, keeps right ones and does"
        " better than answering as many refusals at random"
    )
    if advice.remedy:
        chosen = (
            f"{_name_with_cost(advice.remedy)}. FRR falls (interval below 0), right"
            " refusals are kept, and it does better than answering as many at random"
        )
    lines = [
        f"2. The cheapest remedy: {chosen} (tried: {', '.join(advice.tried) or 'none'})"
    ]
    if advice.trade_off:
        price = tables.format_number(advice.trade_off["price"], 2)
        lines.append(
            f"   A trade-off, no advice: {_name_with_cost(advice.trade_off)} loses the"
            f" fewest twins, {price} points for each point of FRR gained"
        )
    if row:
        frr, twins, dr = (
            tables.format_estimate(row, f"{name}_change", 2)
            for name in ("frr", "twins", "dr")
        )
        lines.append(
            f"   FRR by {frr}, twins refused by {twins} ({row['twins_verdict']}), DR by"
            f" {dr}"
        )
        if row["coin_verdict"]:
            lines.append(
                "   Compared with answering as many refusals at random:"
                f" {row['coin_verdict']}"
            )
        if row["over_verdict"] in ("better", "worse", "undecided"):
            lines.append(f"   Compared with a mere threshold: {row['over_verdict']}")
    of_system = measured.rows["system"].iloc[0]
    title = registry.display_titles([of_system])[0]
    if of_system == system:
        lines.append(f"   Measured on {title}, in the {measured.store} store")
    else:
        lines.append(
            f"   Measured on {title}, not on your model: the recorded one under this"
            " system prompt of nearest FRR"
        )
        lines.append(_suggest_trial(system, config, row["remedy"] if row else ""))
    return lines


def _suggest_trial(system: str, config: QuerySettings, remedy: str = "") -> str:
    """Say how to try remedies on the user's model."""
    if is_served_system(system):
        return (
            "   On a model behind a server 07 tries what needs no weights:"
            f" {_command('07', config)}"
        )
    command = _command("07", config, f'-p remedies="[{remedy or "cheap"}]"')
    return f"   To try {remedy or 'the cheap ones'} on your model: {command}"


def _name_with_cost(row: dict[str, Any]) -> str:
    """Return a remedy's name, and what a prompt costs with it."""
    once = ", after training it once" if row["kind"] == "tuning" else ""
    return f"{row['remedy']} ({row['queries']:.3g} x the model a prompt{once})"
