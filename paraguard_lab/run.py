"""Run notebooks with papermill, from top to bottom.

Each notebook reads what the earlier ones of the same run wrote. A live run asks models;
a run from the record (`rebuild`) reads traces, labels, guard scores and inputs
from `data/`, and makes everything else anew.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from paraguard_lab import preflight
from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies.catalogue import self_cd
from paraguard_lab.report import compare, links
from paraguard_lab.settings import NOTEBOOK_SETTINGS, RunSettings
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.errors import Missing, SettingsError, UserError
from paraguard_utils.models import loading
from paraguard_utils.report import tables
from paraguard_utils.settings import (
    CORPUS,
    check_settings,
    rename_old_parameters,
)
from paraguard_utils.stores import LIVE, RECORDED, Store
from paraguard_utils.text import did_you_mean

Parameters: TypeAlias = Mapping[str, Any]

MINUTES_TABLE = "notebook_minutes"
WHOLE_RUN = "all"  # the row of `MINUTES_TABLE` about the whole run

NOT_OF_A_MODEL = ("01", "08", "A2")
"""Notebooks that build a corpus or read others' records: they run if they are named."""

RUN_ORDER = (
    *("01", "02", "A0", "03", "04", "05"),
    *("A4", "A5", "06", "07", "08", "A1", "A2", "A3", "00"),
)
"""Numbers of the notebooks, each after those whose files it reads."""

PARTIAL = ("limit", "shard", "stop")
"""Parameters of 02 that leave prompts unanswered, which no later notebook can read."""

JUDGE_MODEL = "qwen2.5-coder-0.5b-instruct"  # judges the recorded answers


def number_of(notebook: Path) -> str:
    """Return the number of a notebook: `02` of `02_querying.ipynb`."""
    return notebook.stem[:2]


def list_notebooks(*numbers: str) -> list[Path]:
    """Return the project's notebooks in the order of reading.

    All of them, or those with these numbers (`02`, `A1`). Those of the paper's argument
    come first, then those of `notebooks/beyond/`.
    """
    papers = sorted(paths.NOTEBOOKS.glob("[0-9A]*.ipynb"))
    others = sorted(paths.NOTEBOOKS.glob("beyond/[0-9A]*.ipynb"))
    return [
        path for path in [*papers, *others] if not numbers or number_of(path) in numbers
    ]


def order_to_run(chosen: Iterable[Path]) -> list[Path]:
    """Return notebooks in the order in which they run (`RUN_ORDER`).

    Others come before the last, 00.
    """
    return sorted(chosen, key=_place_to_run)


def _place_to_run(notebook: Path) -> tuple[bool, int, str]:
    """Return where a notebook runs; one that `RUN_ORDER` lacks runs before the last."""
    number = number_of(notebook)
    is_last = number == RUN_ORDER[-1]
    return is_last, [*RUN_ORDER, number].index(number), notebook.stem


def execute_notebook(
    notebook: Path, output: Path, parameters: Parameters, folder: Path | None = None
) -> None:
    """Run one notebook with papermill, in a kernel of its own.

    A cell that fails or a kernel that dies is a UserError, in one line. Links are made
    for the folder in which the notebook will be read, by default that of `output`.
    """
    import papermill
    from traitlets.config import Config

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-") as place:
        # Local sockets instead of TCP ports: nothing on the machine can listen in.
        sockets = {"transport": "ipc", "ip": f"{place}/k"}
        try:
            papermill.execute_notebook(
                notebook,
                output,
                dict(parameters),
                cwd=paths.ROOT,
                progress_bar=False,
                start_timeout=600,  # a busy machine is no error
                stderr_file=sys.stderr,
                config=Config({"KernelManager": sockets}),
            )
        except papermill.PapermillExecutionError as error:
            raise UserError(f"{notebook.stem}: {error.ename}: {error.evalue}") from None
        except RuntimeError:
            raise UserError(
                f"{notebook.stem} stopped: its kernel died (killed, or out of memory)"
                " or did not start; what was asked is kept; run the same command again"
            ) from None
    _rewrite_links(output, folder or output.parent)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Inside a `with` block, set an environment variable, for kernels too."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _rewrite_links(executed: Path, folder: Path) -> None:
    """Rewrite the links of an executed notebook for the folder in which it is read."""
    import nbformat

    notebook = nbformat.read(executed, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = links.rewrite_links(cell.source, folder)
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "text/markdown" in shown:
                text = links.rewrite_links(shown["text/markdown"], folder)
                shown["text/markdown"] = text
    nbformat.write(notebook, executed)


@contextmanager
def rebuild() -> Iterator[None]:
    """Inside a `with` block, let the recorded store read what it has itself written.

    Derived files (pairs, scores, tables) written to `results/recorded/` since the block
    began are read from there, by this process and the kernels that it starts. All other
    files are read from `data/`, as without a rebuild.
    """
    marker = paths.RESULTS / RECORDED / ".rebuild"
    stores.write_text(marker, "")
    with _variable(stores.REBUILD_START, str(marker.stat().st_mtime_ns)):
        yield


def run_notebook(
    notebook: Path,
    store_name: str,
    parameters: Parameters | None = None,
    in_place: bool = False,
) -> float:
    """Run one notebook on a store, say so, and return its minutes.

    Links work in `results/STORE/notebooks/`, or where the notebook itself is if the
    executed one shall take its place.
    """
    started = time.monotonic()
    print(f"{notebook.stem} ...", flush=True)
    output = paths.RESULTS / store_name / "notebooks" / notebook.name
    given = dict(parameters or {})
    if store_name != RECORDED:
        given["store"] = store_name
    folder = notebook.parent if in_place else output.parent
    execute_notebook(notebook, output, given, folder)
    minutes = round((time.monotonic() - started) / 60, 1)
    where = paths.display_path(output)
    print(f"{notebook.stem} done in {minutes:.1f} min: {where}", flush=True)
    return minutes


def run_all(
    store_name: str,
    chosen: Iterable[Path],
    parameters: Mapping[str, Parameters] | None = None,
    in_place: bool = False,
) -> dict[str, float]:
    """Run notebooks one after another until one fails; return the minutes of each.

    `parameters` are by the number of the notebook. They run in `order_to_run`; from the
    record, they rebuild what they derive from it (`rebuild`). `in_place` is that
    of `run_notebook`.
    """
    by_number = parameters or {}
    minutes = {}
    source = rebuild() if store_name == RECORDED else _take_from_record(store_name)
    with _interrupted_in_one_line(), source:
        for notebook in order_to_run(chosen):
            given = by_number.get(number_of(notebook))
            minutes[notebook.stem] = run_notebook(notebook, store_name, given, in_place)
    return minutes


@contextmanager
def _take_from_record(store_name: str) -> Iterator[None]:
    """Inside a `with` block, say once what a live store takes from the record."""
    if stores.IS_SAID in os.environ:
        yield
        return
    folder = paths.display_path(paths.RESULTS / store_name)
    print(f"corpus and vectors that {folder} lacks are read from the record (data/)")
    with _variable(stores.IS_SAID, "yes"):
        yield


@contextmanager
def _interrupted_in_one_line() -> Iterator[None]:
    """Inside a `with` block, let Ctrl-C or SIGTERM end in one line, the last.

    Raise KeyboardInterrupt for both, once the kernel is gone.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    earlier = signal.signal(signal.SIGTERM, interrupt) if in_main_thread else None
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        raise
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, earlier)


@dataclass(frozen=True)
class FinishedRun:
    """What was run: the parameters, and the notebooks by their numbers.

    `attempt` is the parameter by which 02 queried a part only, as in `limit=60`.
    """

    config: RunSettings
    notebooks: list[str]
    attempt: str = ""


def run_notebooks(wanted: Sequence[str], given: Parameters) -> FinishedRun:
    """Run some notebooks with the same parameters, each taking those that it has.

    `wanted` has their numbers or names ("02", "02_querying"). Without any, all run but
    `NOT_OF_A_MODEL`, and but 07 where the corpus has no twins. If 02
    queries a part of the prompts only (`PARTIAL`), it alone runs: the others need all
    answers.
    """
    import papermill

    chosen = _find_notebooks(wanted)
    known = {path: papermill.inspect_notebook(path) for path in chosen}
    everywhere = sorted(set().union(*known.values()))
    given = rename_old_parameters(given, dict.fromkeys(everywhere))
    for name in given:
        if name not in everywhere:
            stems = ", ".join(path.stem for path in chosen)
            raise SettingsError(
                f"no notebook of {stems} has a parameter"
                f" {name!r}{did_you_mean(name, everywhere)}"
            )
    usual = {"store": RECORDED, "corpus": CORPUS}
    parameters = {}
    for path, names in known.items():
        number = number_of(path)
        parameters[number] = {name: given[name] for name in names if name in given}
        check_settings(usual | parameters[number], NOTEBOOK_SETTINGS[number])
    config = RunSettings.pick(usual | dict(given))
    store = config.open_store()
    attempt = _find_attempt(given, known)
    if attempt:
        chosen = [path for path in chosen if number_of(path) in ("01", "02")]
    source = nullcontext() if store.recorded else _take_from_record(store.name)
    with source:
        if not wanted and not attempt and not _has_twins(store, config):
            print(
                f"07_remedies is left out: no cluster of {config.corpus} has a harmful"
                " twin"
            )
            chosen = [path for path in chosen if number_of(path) != "07"]
        numbers = [number_of(path) for path in chosen]
        if not store.recorded and "05" in numbers:
            take_recorded_guard_scores(store, (config.corpus, config.twins))
        queried = {}
        for path in chosen:
            number = number_of(path)
            defaults = preflight.read_defaults(known[path])
            queried[number] = defaults | parameters[number]
        if planned := preflight.describe_queries(config, queried):
            print(planned, flush=True)
        run_all(store.name, chosen, parameters)
    return FinishedRun(config, numbers, attempt)


def _find_attempt(given: Parameters, known: Mapping[Path, object]) -> str:
    """Return the parameter by which 02 queries a part only; "" if it queries all."""
    if "02" not in map(number_of, known):
        return ""
    for name in PARTIAL:
        if given.get(name):
            return f"{name}={given[name]}"
    return ""


def _find_notebooks(wanted: Sequence[str]) -> list[Path]:
    """Return the notebooks of these numbers or names, in the order to run them."""
    every = list_notebooks()
    if not wanted:
        return order_to_run(
            path for path in every if number_of(path) not in NOT_OF_A_MODEL
        )
    chosen = []
    for name in wanted:
        named = [path for path in every if name in (path.stem, number_of(path))]
        if not named:
            stems = ", ".join(path.stem for path in every)
            raise SettingsError(f"there is no notebook {name!r}; there are {stems}")
        chosen += named
    return order_to_run(set(chosen))


def take_recorded_guard_scores(store: Store, corpus_names: Iterable[str]) -> None:
    """Copy the recorded scores of guards into a live store that lacks them.

    They depend on neither the user's model nor his guard. A score's key holds the
    guard's version and the text, so that whatever else there is to score is scored.
    """
    recorded = Store(RECORDED)
    for corpus_name in filter(None, corpus_names):
        for guard in registry.published_systems("guard").index:
            names = ("guards", corpus_name, guard)
            if recorded.has(*names) and not store.has(*names):
                meta = stores.read_meta(recorded.path(*names)) | {"store": RECORDED}
                store.write(*names, frame=recorded.read(*names), meta=meta)


def _has_twins(store: Store, config: RunSettings) -> bool:
    if not config.twins:
        return False
    try:
        corpus = store.read_earlier("corpus", config.corpus)
        twins = store.read_earlier("corpus", config.twins)
    except Missing:  # the first notebook says of which
        return True
    return not unsafe.select_twins(corpus, twins).empty


def reproduce_live() -> None:
    """Run every notebook live, then compare with the record."""
    _find_models(registry.list_default_models())
    live = Store(LIVE)
    for file in (live.writes / "guards").rglob("*.csv"):
        if stores.read_meta(file).get("store") == RECORDED:
            file.unlink()  # what is compared with the record is computed
    resumed = any((live.writes / "traces").rglob("*.parquet"))
    parameters = _parameters_of_reproduction(live)
    with _take_from_record(LIVE):
        print("\n".join(_announce_reproduction(parameters)), flush=True)
        minutes = run_all(LIVE, list_notebooks(), parameters)
    if not resumed:  # a resumed run says nothing about how long the whole takes
        minutes[WHOLE_RUN] = round(sum(minutes.values()), 1)
        frame = pd.DataFrame(sorted(minutes.items()), columns=["notebook", "minutes"])
        live.write("tables", MINUTES_TABLE, frame=frame, meta={})
    _print_reproduction(live)


def _announce_reproduction(parameters: Mapping[str, Parameters]) -> list[str]:
    """Say what a live run queries, and how long the recorded one took."""
    import papermill

    (notebook,) = list_notebooks("02")
    defaults = preflight.read_defaults(papermill.inspect_notebook(notebook))
    config = RunSettings(store=LIVE, corpus=CORPUS)
    recorded = Store(RECORDED).read("tables", MINUTES_TABLE)
    took = recorded.set_index("notebook")["minutes"][WHOLE_RUN]
    return [
        preflight.describe_queries(config, {"02": defaults | dict(parameters["02"])}),
        f"05 runs {len(parameters['05']['guards'])} guards on the same prompts, and 07"
        " queries the model and the guards about rewordings of what they refused; the"
        f" recorded run took {took:.0f} minutes in all, on two cores",
    ]


def _find_models(names: Iterable[str]) -> None:
    """Find or fetch the weights of models, before anything expensive."""
    for name in names:
        loading.resolve_model(name)


def _parameters_of_reproduction(live: Store) -> dict[str, Parameters]:
    """Return the parameters of a live run by the number of the notebook.

    A slow guard is scored only if the live store has it already. In A2, the default
    model shows what a model writes.
    """
    published = registry.published_systems("guard", "refusal")
    guards = [
        name
        for name in published.index
        if published["default"][name] == "yes" or live.has("guards", CORPUS, name)
    ]
    return {
        "02": {"twins_system_prompts": [follow_ups.SAMPLED_SYSTEM_PROMPT]},
        "05": {"guards": guards},
        "A2": {"paraphraser": registry.list_default_models()[0]},
    }


def _print_reproduction(live: Store) -> None:
    """Print Table 1, and how a live run differs from the record."""
    table = tables.format_estimates(
        live.read("tables", "table1_systems"),
        ["frr", "dr", "ci", "cr60", "cd", "flip_rate"],
        ["system", "interpretation", "n_reject", "n_scored"],
    )
    print(f"\nTable 1\n\n{table.to_string(index=False)}")
    print("\nDifferences to the recorded run:")
    for line in compare.compare_with_record(live):
        print(f"  {line}")


def list_optional_models() -> list[str]:
    """Return the names of the published models that are queried on request only."""
    chat = registry.published_systems("chat")
    return list(chat.loc[chat["default"] == "no", "model"].unique())


def ask_optional_models() -> None:
    """Query the optional models in the live store, and all for long and drawn answers.

    One of them judges all answers. The models that are guards too are asked as such,
    and what is rejected is asked again in other words.
    """
    optional = list_optional_models()
    _find_models(optional)
    again = {"judge": JUDGE_MODEL, "long_answers": 200, "draw": 60, "wordings": True}
    for name in (*optional, ""):
        given: dict[str, Parameters] = {
            "02": {"model": name},
            "A0": {"model": name, **again},
        }
        run_all(LIVE, list_notebooks(*given), given)
    run_all(LIVE, list_notebooks("03", "05"))
    for name in (*optional, ""):
        run_all(LIVE, list_notebooks("07"), {"07": {"model": name}})
    print("make reproduce scores them beside the default one")


def ask_remedies(xstest: str = "") -> None:
    """Apply every remedy in the live store, and query what it needs, resumably.

    With XSTest's file of prompts, its unsafe ones are asked too, and tuned models are
    asked its safe ones.
    """
    _find_models(registry.list_default_models())
    outside = {"xstest": xstest} if xstest else {}
    # Self-CD contrasts with the prompt without a system prompt, twins included.
    prompts_of_twins = [self_cd.PLAIN_PROMPT, follow_ups.SAMPLED_SYSTEM_PROMPT]
    given: dict[str, Parameters] = {
        "02": {"twins_system_prompts": prompts_of_twins, **outside},
        "07": {"remedies": ["all"], **outside},
    }
    run_all(LIVE, list_notebooks(*given), given)
    results = paths.display_path(paths.RESULTS / LIVE)
    print(f"remedy_map and its figure are in {results}")


def redraw_figures() -> None:
    """Redraw every table and figure from recorded traces, without a model."""
    run_all(RECORDED, list_notebooks())
    print(f"tables and figures are in {paths.display_path(paths.RESULTS / RECORDED)}")
