"""Running notebooks: some, all live, all from the record; the report and the explorer."""

import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pandas as pd
import yaml

from paraguard_lab.labels import follow_ups
from paraguard_lab.remedies.catalogue import self_cd
from paraguard_lab.report import compare, numbers
from paraguard_tools.logs import audit
from paraguard_tools.pages import advice, explorer
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis import pipeline
from paraguard_utils.errors import Missing, SettingsError, UserError
from paraguard_utils.labels import systems
from paraguard_utils.models import loading, trace_store
from paraguard_utils.report import tables
from paraguard_utils.settings import CORPUS, Settings, check_settings
from paraguard_utils.stores import LIVE, RECORDED
from paraguard_utils.text import did_you_mean

if TYPE_CHECKING:  # the notebooks' packages, which not every installation has
    from jupyter_client.manager import AsyncKernelManager

MINUTES_TABLE = "notebook_minutes"
# The row of `MINUTES_TABLE` about the whole run; some notebooks run side by side
WHOLE_RUN = "all"

RESUMING = (
    "01_corpus_building",
    "02_querying",
    "05_guard_comparison",
    "07_remedies",
    "A2_writers",
    WHOLE_RUN,
)
"""Notebooks that embed, ask or score, and in a live store do only what is missing."""

INTERPRETATION_ONLY = (
    "06",
    "A1",
)  # notebooks that only read what earlier ones make, and nothing of each other
LAST = (
    "A3",
    "00",
)  # notebooks that show the tables of all others, and so run last, in this order
JUDGE_MODEL = (  # the model that judges the recorded answers
    "qwen2.5-coder-0.5b-instruct"
)


def list_notebooks(*numbers: str) -> list[Path]:
    """Return the project's notebooks in the order of reading: all, or those with these
    numbers (`02`, `A1`).
    """
    return [
        path
        for path in sorted(paths.NOTEBOOKS.glob("[0-9A]*.ipynb"))
        if not numbers or path.stem[:2] in numbers
    ]


def order_to_run(chosen: Sequence[Path]) -> list[Path]:
    """Return notebooks in the order in which they run: what shows the tables of others
    comes last.
    """
    late = {number: place for place, number in enumerate(LAST, 1)}
    return sorted(chosen, key=lambda path: (late.get(path.stem[:2], 0), path.stem))


def execute_notebook(
    notebook: Path,
    output: Path,
    parameters: dict[str, Any],
    kernel: "AsyncKernelManager | None" = None,
) -> None:
    """Run one notebook with papermill, in a kernel of its own if none is given.

    A cell that fails or a kernel that dies is a UserError, in one line.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # Local sockets instead of TCP ports: nothing on the machine can listen in. Two
        # kernels need two places.
        own = {
            "config": Config(
                {"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}}
            )
        }
        try:
            papermill.execute_notebook(
                notebook,
                output,
                parameters,
                cwd=paths.ROOT,
                progress_bar=False,
                start_timeout=600,  # a busy machine is no error
                stderr_file=sys.stderr,
                request_save_on_cell_execute=kernel is None,
                **(own if kernel is None else {"km": kernel}),
            )
        except papermill.PapermillExecutionError as error:
            raise UserError(f"{notebook.stem}: {error.ename}: {error.evalue}") from None
        except DeadKernelError:
            store = parameters.get("store", RECORDED)
            folder = paths.display_path(paths.RESULTS / store)
            kept = f"what was asked is kept in {folder}; " if store != RECORDED else ""
            raise UserError(
                f"{notebook.stem} stopped: its kernel died (killed, or out of memory);"
                f" {kept}run the same command again"
            ) from None
        except RuntimeError as error:
            raise UserError(
                f"{notebook.stem}: its kernel did not start: {error}; run the same"
                " command again"
            ) from None


def run_all(
    store_name: str, given: Mapping[str, dict[str, Any]], chosen: Sequence[Path]
) -> dict[str, float]:
    """Run notebooks in turn, `given` parameters by their number, until one fails.

    Return the minutes of each.
    """
    return {
        path.stem: run_notebook(path, store_name, given.get(path.stem[:2], {}))
        for path in chosen
    }


def run_side_by_side(store_name: str, chosen: Sequence[Path]) -> dict[str, float]:
    """Run notebooks that ask no model, as many at once as there are cores, and return
    the minutes of each.

    They are started in this order, and none may read what another writes. One that
    fails stops the others. A kernel runs one after the other, since importing takes
    seconds, and forgets the names that the one before has left there.
    """
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    n = min(cores, len(chosen))
    waiting, minutes = deque(chosen), dict[str, float]()

    def work_off(kernel: AsyncKernelManager) -> None:
        # No model runs, so one thread a notebook is faster. A kernel lives a minute,
        # and collecting garbage takes longer than what it frees is worth; a reset
        # collects too, but passes over what is frozen.
        how = [
            "--IPKernelApp.exec_lines=__import__('gc').disable()",
            "--HistoryManager.enabled=False",
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        run_sync(kernel.start_kernel)(
            cwd=paths.ROOT, env=environment, extra_arguments=how
        )
        while waiting:
            notebook = waiting.popleft()
            minutes[notebook.stem] = run_notebook(notebook, store_name, kernel=kernel)
            client = kernel.blocking_client()
            client.start_channels()
            client.execute(
                "import gc; gc.freeze(); get_ipython().reset()",
                silent=True,
                reply=True,
                timeout=600,
            )
            client.stop_channels()

    with (
        tempfile.TemporaryDirectory(prefix="kernel-") as folder,
        ThreadPoolExecutor(n) as pool,
    ):
        kernels = [
            AsyncKernelManager(transport="ipc", ip=f"{folder}/{number}")
            for number in range(n)
        ]
        try:
            for worker in as_completed(
                [pool.submit(work_off, kernel) for kernel in kernels]
            ):
                worker.result()
        finally:
            waiting.clear()
            for kernel in kernels:
                run_sync(kernel.shutdown_kernel)(now=True)
    return minutes


def run_notebook(
    notebook: Path,
    store_name: str,
    given: Mapping[str, Any] | None = None,
    kernel: "AsyncKernelManager | None" = None,
) -> float:
    """Run one notebook on a store, say so, and return its minutes."""
    started = time.monotonic()
    print(f"{notebook.stem} ...", flush=True)
    output = paths.RESULTS / store_name / "notebooks" / notebook.name
    parameters = {
        **(given or {}),
        **({"store": store_name} if store_name != RECORDED else {}),
    }
    execute_notebook(notebook, output, parameters, kernel)
    minutes = round((time.monotonic() - started) / 60, 1)
    print(f"{notebook.stem} done in {minutes:.1f} min", flush=True)
    return minutes


def run_notebooks(wanted: Sequence[str], given: dict[str, Any]) -> None:
    """Run some notebooks in order with the same parameters, each taking those it has.

    `wanted` has their numbers or names ("02", "02_querying"). Without any, all run but
    those that build a corpus (01, A2), and but 07 where the corpus has no twins.
    """
    import papermill

    chosen = order_to_run(
        [path for path in list_notebooks() if path.stem[:2] not in ("01", "A2")]
    )
    if wanted:
        known = {
            name: path
            for path in list_notebooks()
            for name in (path.stem, path.stem[:2])
        }
        for name in wanted:
            if name not in known:
                there = ", ".join(path.stem for path in list_notebooks())
                raise SettingsError(f"there is no notebook {name!r}; there are {there}")
        chosen = order_to_run(list({known[name] for name in wanted}))
    takes = {path.stem: list(papermill.inspect_notebook(path)) for path in chosen}
    everywhere = sorted(set().union(*takes.values()))
    for name in given:
        if name not in everywhere:
            meant = did_you_mean(name, everywhere)
            raise SettingsError(
                f"no notebook of {', '.join(takes)} has a parameter {name!r}{meant}"
            )
    config = check_settings({"store": RECORDED, "corpus": CORPUS} | given)
    store = config.open_store()
    if not wanted and not _has_twins(store, config):
        print(
            f"07_remedies is left out: no cluster of {config.corpus} has a harmful twin"
        )
        chosen = [path for path in chosen if path.stem[:2] != "07"]
    by_number = {
        stem[:2]: {name: given[name] for name in names if name in given}
        for stem, names in takes.items()
    }
    run_all(store.name, by_number, chosen)
    if config.model:
        print("\n".join(describe_model(store, config)))
    print(
        "tables, figures and executed notebooks are in"
        f" {paths.display_path(store.writes)}"
    )


def describe_model(store: stores.Store, config: Settings) -> list[str]:
    """Say of each system of a user's model what was found, one line a system, and where
    to look next.
    """
    lines = []
    if store.has("tables", "table1_rephrasing"):
        names = trace_store.find_systems(store, config.corpus, config.model)
        table = store.read("tables", "table1_systems")
        table = table[
            table["system"].isin(names) & (table["interpretation"] == "relative")
        ]
        again = store.read("tables", "table1_rephrasing").drop(
            columns=["n_reject", "too_few"]
        )
        again.columns = again.columns.str.replace("3_twins", "3_harmful")
        unknown = "not known, too little was refused or answered"
        for row in table.merge(again, on="system").to_dict("records"):
            dr = (
                unknown
                if row["too_few_for_dr"]
                else tables.format_estimate(row, "dr", 2)
            )
            said = audit.describe_system(row | {"system": row["system"]})
            lines.append(f"{said} DR is {dr} (0: meaning decides; 1: it does not).")
    page = paths.display_path(store.writes / "notebooks" / "00_results.ipynb")
    return [*lines, f"next: {page}, or paraguard remedy --model {config.model}"]


def _has_twins(store: stores.Store, config: Settings) -> bool:
    if not config.twins:
        return False
    try:
        corpus, twins = (
            store.read_earlier("corpus", name) for name in (config.corpus, config.twins)
        )
    except Missing:  # the first notebook says of which
        return True
    return not unsafe.select_twins(corpus, twins).empty


def reproduce_live() -> None:
    """Run every notebook live, then compare with the record."""
    for name in registry.list_default_models():
        loading.resolve_model(name)  # before anything expensive
    live = stores.Store(LIVE)
    size = len(stores.Store(RECORDED).read("corpus", CORPUS))
    usual = check_settings({"store": LIVE, "corpus": CORPUS})
    done = systems.print_preflight(
        live, CORPUS, size, list(registry.default_systems().index), usual
    )
    # A slow guard is scored where it was asked on request. The default model shows in
    # A2 what a model writes.
    guards = registry.published_systems("guard", "refusal")
    there = [
        name
        for name in guards.index
        if guards["default"][name] == "yes" or live.has("guards", CORPUS, name)
    ]
    given: dict[str, dict[str, Any]] = {
        "02": {"twins_system_prompts": [follow_ups.SAMPLED_SYSTEM_PROMPT]},
        "05": {"guards": there},
        "A2": {"paraphraser": registry.list_default_models()[0]},
    }
    started = time.monotonic()
    asking = [
        path
        for path in list_notebooks()
        if path.stem[:2] not in (*INTERPRETATION_ONLY, *LAST)
    ]
    minutes = run_all(LIVE, given, asking)
    minutes |= run_side_by_side(LIVE, list_notebooks(*INTERPRETATION_ONLY))
    minutes |= run_all(LIVE, {}, order_to_run(list_notebooks(*LAST)))
    minutes[WHOLE_RUN] = round((time.monotonic() - started) / 60, 1)
    earlier = (
        dict(live.read("tables", MINUTES_TABLE).to_numpy())
        if live.has("tables", MINUTES_TABLE)
        else {}
    )
    if done:  # what goes on where it was says nothing about how long the whole takes
        minutes |= {name: earlier[name] for name in RESUMING if name in earlier}
    if not done or set(RESUMING) <= set(earlier):
        frame = pd.DataFrame(sorted(minutes.items()), columns=["notebook", "minutes"])
        live.write("tables", MINUTES_TABLE, frame=frame, meta={})
    table = live.read("tables", "table1_systems")
    print("\nTable 1\n")
    columns = ["frr", "dr", "ci", "cr60", "cd", "flip_rate"]
    print(
        tables.format_estimates(
            table, columns, ["system", "interpretation", "n_reject", "n_scored"]
        ).to_string(index=False)
    )
    print("\nFigures:")
    for figure in sorted((live.writes / "figures").glob("*.p[nd][gf]")):
        print(f"  {paths.display_path(figure)}")
    print("\nDifferences to the recorded run:")
    for line in compare.compare_with_record(live):
        print(f"  {line}")


def ask_optional_models() -> None:
    """Ask the optional models in the live store, and all for long and drawn answers.

    Let one of them judge all.

    The models that are guards too are asked as such, and what is rejected is asked
    again in other words.
    """
    optional = registry.list_optional_models()
    for name in optional:
        loading.resolve_model(name)  # before anything expensive
    for name in (*optional, ""):
        output = paths.RESULTS / LIVE / "notebooks" / f"02_{name or 'default'}.ipynb"
        given = {
            "store": LIVE,
            "model": name,
            "judge": JUDGE_MODEL,
            "long_answers": 200,
            "draw": 60,
            "wordings": True,
        }
        execute_notebook(list_notebooks("02")[0], output, given)
    run_all(LIVE, {}, list_notebooks("03", "05"))
    for name in (*optional, ""):
        run_all(LIVE, {"07": {"model": name}}, list_notebooks("07"))
    print("make reproduce scores them beside the default one")


def ask_remedies(xstest: str = "") -> None:
    """Apply every remedy in the live store, and ask what it needs.

    Whatever was asked is not asked again.

    With XSTest's file of prompts its unsafe ones are asked too, and tuned models are
    asked its safe ones.
    """
    for name in registry.list_default_models():
        loading.resolve_model(name)  # before anything expensive
    # Self-CD contrasts with the prompt without a system prompt, twins included.
    twins = {
        "twins_system_prompts": [self_cd.PLAIN_PROMPT, follow_ups.SAMPLED_SYSTEM_PROMPT]
    }
    outside = {"xstest": xstest} if xstest else {}
    given: dict[str, dict[str, Any]] = {
        "02": twins | outside,
        "07": {"remedies": ["all"]} | outside,
    }
    run_all(LIVE, given, list_notebooks(*given))
    print(
        f"{advice.REMEDY_MAP_TABLE} and its figure are in"
        f" {paths.display_path(paths.RESULTS / LIVE)}"
    )


def redraw_figures() -> None:
    """Redraw every table and figure from recorded traces, without a model."""
    run_side_by_side(
        RECORDED, list_notebooks()[::-1]
    )  # the last, longest one is started first
    print(f"tables and figures are in {paths.display_path(paths.RESULTS / RECORDED)}")


def write_html(folder: Path | None = None) -> None:
    """Write the site of the record: its first page, the report, the explorer, the data
    card and the method.
    """
    from paraguard_lab.report import (
        croissant,  # the notebooks' packages, which not every installation has
    )
    from paraguard_tools.pages import (
        handout,  # the notebooks' packages, which not every installation has
    )

    folder = folder or paths.RESULTS
    notebooks = {
        path.stem: nbformat.read(path, as_version=4) for path in list_notebooks()
    }
    pages = {file: paths.ROOT / file for file in handout.SITE_PAGES}
    found = numbers.collect_numbers(
        stores.Store(RECORDED), [handout.ABSTRACT, *pages.values()]
    )
    page = handout.render_report(
        notebooks,
        found,
        citation=yaml.safe_load(
            (paths.ROOT / "CITATION.cff").read_text(encoding="utf-8")
        ),
        record=json.loads(croissant.CROISSANT_FILE.read_text(encoding="utf-8")),
    )
    stores.write_text(folder / "report.html", page)
    for file, path in pages.items():
        markdown = numbers.fill_numbers(path.read_text(encoding="utf-8"), found)
        stores.write_text(
            folder / handout.SITE_PAGES[file],
            handout.render_page(file, markdown, notebooks),
        )
    write_explorer(check_settings({"store": RECORDED, "corpus": CORPUS}), folder)
    print(
        f"open {paths.display_path(folder / 'index.html')}, which links to the report"
        " and all other pages"
    )


def write_explorer(config: Settings, folder: Path | None = None) -> None:
    """Write the explorer of the decisions in a store, on one corpus and of one model
    where it is named.
    """
    store = config.open_store()
    corpus = store.read_earlier("corpus", config.corpus)
    unsafe.refuse_unsafe(corpus, "the explorer")  # before all the scores are read
    names, _ = systems.list_systems_to_score(store, config.corpus, config)
    data = pipeline.read_evaluations(store, config.corpus, corpus, names)
    data |= pipeline.read_guard_evaluations(store, config.corpus, corpus, data)
    titles = dict(zip(data, registry.display_titles(data), strict=True))
    page = explorer.render_explorer(
        corpus, data, explorer.ExplorerHeader(config.corpus, store.name, titles)
    )
    path = (folder or paths.RESULTS) / "explorer.html"
    stores.write_text(path, page)
    n = sum(int((own.labels["label"] == "reject").sum()) for own in data.values())
    print(
        f"{n:,} refusals, {path.stat().st_size / 1e6:.1f} MB: open"
        f" {paths.display_path(path)} in a browser"
    )
