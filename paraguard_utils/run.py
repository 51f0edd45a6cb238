"""What the command line does: run notebooks, redraw from the record, promote a live run, make a report."""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import nbformat
import pandas as pd

from paraguard_utils import encoder, explorer, models, numbers, paths, querying, stores, tables, targets, validation
from paraguard_utils.errors import SettingsError, UserError
from paraguard_utils.settings import CORPUS, LIVE, check, freeze, near

MINUTES = "notebook_minutes"
RESUME = ("01_corpus_building", "02_querying", "05_guard_comparison")
"""Notebooks that embed, ask or score, and in a live store do only what is missing."""
COMPARED = {
    "table1_targets": ["target", "reading"],
    "table2_cohorts": ["target", "reading", "bins", "risk", "similarity"],
    "table3_guards": ["target", "reading"],
    "ci_correlations": ["target", "reading", "covariate"],
    "sensitivity": ["dimension", "setting", "target"],
}
"""Tables compared with the record, and the columns that identify their rows."""

PROMOTED = ("generated", "corpus", "vectors", "traces", "guards", "labels")
"""Folders of a live store that `record` copies to `data/`."""

ON_REQUEST = ("verdicts", "answers")
"""Folders that a live run fills on request only: a target without one there keeps its recorded file."""

DERIVED = ("pairs", "scores", "training", "tables")
"""Folders that the recorded notebooks then make from them, and that replace those in `data/`."""

PUBLIC = (
    *(f"public_{name}" for name in ("seeds", "yield", "gates", "fidelity", "steps", "risk", "risk_auc")),
    *validation.TABLES,
)
"""Tables that `building` and `validation` make from benchmark files: counts without texts. Those of a live store
replace the recorded ones, which stay where it has none."""

SECOND_FAMILY = "qwen2.5-coder-0.5b-instruct"
LONG_ANSWERS = 200
"""Prompts a model is asked again for a longer answer, to see what the usual cut costs."""


def notebooks():
    """Return the project's notebooks in order."""
    return sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


def execute(notebook, output, parameters):
    """Run one notebook with papermill, its progress bars on stderr.

    Parameters
    ----------
    notebook, output : Path
    parameters : dict

    Raises
    ------
    UserError
        A cell failed, and the message is its last line; or the kernel died.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # Local sockets instead of TCP ports: nothing on the machine can listen in. Two kernels need two places.
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})
        try:
            papermill.execute_notebook(
                notebook,
                output,
                parameters,
                cwd=paths.ROOT,
                progress_bar=False,
                start_timeout=600,  # a busy machine is no error
                stderr_file=sys.stderr,
                config=sockets,
            )
        except papermill.PapermillExecutionError as error:
            raise UserError(f"{notebook.stem}: {error.ename}: {error.evalue}") from None
        except DeadKernelError:
            store = parameters.get("store", stores.RECORDED)
            kept = (
                f"what was asked is kept in {paths.shown(paths.RESULTS / store)}; " if store != stores.RECORDED else ""
            )
            raise UserError(
                f"{notebook.stem} stopped: its kernel died (killed, or out of memory); {kept}run the same command again"
            ) from None
        except RuntimeError as error:
            raise UserError(f"{notebook.stem}: its kernel did not start: {error}; run the same command again") from None


def run_all(store_name, given=None, chosen=None, after=None):
    """Run notebooks one after another, with a line for each; the first that fails ends it.

    Parameters
    ----------
    store_name : str
    given : dict of str to dict
        Parameters by notebook.
    chosen : list of Path
        Default: all.
    after : callable or None
        Called without arguments after each notebook.

    Returns
    -------
    dict of str to float
        Minutes by notebook.
    """
    minutes = {}
    for notebook in chosen or notebooks():
        minutes[notebook.stem] = _timed(notebook, store_name, (given or {}).get(notebook.stem, {}))
        if after is not None:
            after()
    return minutes


def redraw():
    """Run all notebooks on the recorded store side by side: none reads what another writes.

    Raises
    ------
    UserError
        One of them failed; the others are stopped.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    # No model runs, so one thread a notebook is faster.
    with ProcessPoolExecutor(cores, initializer=os.environ.update, initargs=({"OMP_NUM_THREADS": "1"},)) as pool:
        # The last, longest one is started first.
        running = [pool.submit(_timed, notebook, stores.RECORDED, {}) for notebook in notebooks()[::-1]]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
                process.join()
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "a notebook's process died, killed or out of memory; run the same command again"
                ) from None
            raise


def _timed(notebook, store_name, given):
    started = time.monotonic()
    print(f"{notebook.stem} ...", flush=True)
    output = paths.RESULTS / store_name / "notebooks" / notebook.name
    execute(notebook, output, given | ({"store": store_name} if store_name != stores.RECORDED else {}))
    minutes = round((time.monotonic() - started) / 60, 1)
    print(f"{notebook.stem} done in {minutes:.1f} min", flush=True)
    return minutes


def declared(notebook):
    """Return the names of a notebook's parameters."""
    import papermill

    return list(papermill.inspect_notebook(notebook))


def run(wanted=(), given=None):
    """Run some notebooks in order with the same parameters, each taking those it has.

    Parameters
    ----------
    wanted : sequence of str
        Numbers or names of notebooks ("02", "02_querying"); none: 02 to 06.
    given : dict
        Parameters by name.

    Raises
    ------
    UserError
        Nothing has such a name, a value is not allowed, or a notebook failed.
    """
    given = given or {}
    chosen = [path for path in notebooks() if path.stem[:2] != "01"]
    if wanted:
        known = {name: path for path in notebooks() for name in (path.stem, path.stem[:2])}
        for name in wanted:
            if name not in known:
                raise SettingsError(
                    f"there is no notebook {name!r}; there are {', '.join(p.stem for p in notebooks())}"
                )
        chosen = sorted({known[name] for name in wanted})
    takes = {path.stem: declared(path) for path in chosen}
    everywhere = sorted(set().union(*takes.values()))
    for name in given:
        if name not in everywhere:
            raise SettingsError(f"no notebook of {', '.join(takes)} has a parameter {name!r}{near(name, everywhere)}")
    usual = {"store": stores.RECORDED, "corpus": CORPUS}
    store = check(usual | given).open_store()
    by_notebook = {stem: {name: given[name] for name in names if name in given} for stem, names in takes.items()}
    run_all(store.name, by_notebook, chosen)
    print(f"tables, figures and executed notebooks are in {paths.shown(store.writes)}")


def reproduce():
    """Run every notebook live, then compare with the record."""
    for name in targets.default_models():
        models.resolve(name)  # before anything expensive
    live = stores.Store(LIVE)
    size = len(stores.Store(stores.RECORDED).read("corpus", CORPUS))
    usual = check({"store": LIVE, "corpus": CORPUS})
    done = targets.preflight(live, CORPUS, size, list(targets.by_default().index), usual)
    # The default model shows in 01 what a model writes beside the rules.
    minutes = run_all(LIVE, {"01_corpus_building": {"paraphraser": targets.default_models()[0]}})
    earlier = dict(live.read("tables", MINUTES).to_numpy()) if live.has("tables", MINUTES) else {}
    if done:  # what goes on where it was says nothing about how long the whole takes
        minutes |= {name: earlier[name] for name in RESUME if name in earlier}
    if not done or set(RESUME) <= set(earlier):
        frame = pd.DataFrame(minutes.items(), columns=["notebook", "minutes"])
        live.write("tables", MINUTES, frame=frame, meta={})
    table = live.read("tables", "table1_targets")
    print("\nTable 1\n")
    columns = ["frr", "ci", "cr75", "cr60", "cd", "excess", "flip_rate"]
    print(tables.shown(table, columns, ["target", "reading", "n_reject", "n_scored"]).to_string(index=False))
    print("\nFigures:")
    for figure in sorted((live.writes / "figures").glob("*.p[nd][gf]")):
        print(f"  {paths.shown(figure)}")
    print("\nDifferences to the recorded run:")
    for line in differences(live):
        print(f"  {line}")


def second_family():
    """Ask the optional second family in the live store, let it judge both, and ask both for longer answers."""
    models.resolve(SECOND_FAMILY)
    for name in (SECOND_FAMILY, ""):
        output = paths.RESULTS / LIVE / "notebooks" / f"02_{name or 'default'}.ipynb"
        given = {"store": LIVE, "model": name, "judge": SECOND_FAMILY, "long_answers": LONG_ANSWERS}
        execute(paths.NOTEBOOKS / "02_querying.ipynb", output, given)
    print("make reproduce scores it beside the default one")


def differences(live):
    """Describe what differs between a live store and the record: labels, then tables number by number.

    Returns
    -------
    list of str
    """
    recorded = stores.Store(stores.RECORDED)
    lines, equal, total = [], 0, 0
    known = [*targets.published("chat").index, *targets.published("guard").index]
    asked = [name for name in known if live.has("labels", CORPUS, name)]
    for name in known:
        if name not in asked:
            lines.append(f"labels of {name}: not asked in this store, its rows are the recorded ones")
            continue
        if not recorded.has("labels", CORPUS, name):
            lines.append(f"labels of {name}: nothing recorded")
            continue
        old, new = (store.read("labels", CORPUS, name).set_index("prompt_id") for store in (recorded, live))
        both = old.index.intersection(new.index)  # an interrupted store may hold fewer
        same = old.loc[both, "label"].eq(new.loc[both, "label"])
        equal, total = equal + int(same.sum()), total + len(same)
        lines += [f"label of {prompt} by {name}: {old['label'][prompt]} recorded" for prompt in same.index[~same]]
    if total:
        lines.insert(0, f"labels: {equal} of {total} equal ({equal / total:.2%})")
    for name, keys in COMPARED.items():
        if not recorded.has("tables", name):
            lines.append(f"{name}: nothing recorded")
            continue
        # Which store a row comes from is no number.
        old, new = (store.read("tables", name).drop(columns="store", errors="ignore") for store in (recorded, live))
        old, new = (frame[frame["target"].isin(asked)] for frame in (old, new))
        lines += tables.told_differences(name, tables.differences(old, new, keys), keys)
    return lines


def figures():
    """Redraw every table and figure from recorded traces, without a model."""
    redraw()
    print(f"tables and figures are in {paths.shown(paths.RESULTS / stores.RECORDED)}")


def record():
    """Promote a live run to the record and execute the committed notebooks from it.

    Only the project's corpus and its published targets are promoted, whatever else the live store holds; a target that
    a live run does not ask by default keeps its recorded files where the live store lacks them. Tables and figures are
    those that the recorded notebooks make from what was promoted.
    """
    live = stores.Store(LIVE)
    for name in COMPARED:
        if not live.has("tables", name):
            raise UserError(f"the live store has no table {name}; run make reproduce first")
    known = [*targets.published("chat").index, *targets.published("guard").index]
    for name in COMPARED:
        meta = stores.read_meta(live.path("tables", name))["parameters"]
        rows = live.read("tables", name)
        if meta["corpus"] != CORPUS or not set(rows["target"]) <= set(known) or meta.get("model"):
            raise UserError(f"the live table {name} is of another corpus or other targets; run make reproduce first")
    described = live.read("tables", "public_risk") if live.has("tables", "public_risk") else None
    if described is not None and described["texts"].iloc[0] != len(live.read("corpus", CORPUS)):
        raise UserError(
            "the live table public_risk describes another corpus; run python -m paraguard_utils.building again"
        )
    recorded = stores.Store(stores.RECORDED)
    kept = _kept(live, recorded)
    for folder in PROMOTED:
        _replace(live.writes / folder, paths.DATA / folder, known, kept)
    for folder in ON_REQUEST:
        _replace(
            live.writes / folder,
            paths.DATA / folder,
            known,
            [name for name in known if not live.has(folder, CORPUS, name)],
        )
    shutil.rmtree(recorded.writes, ignore_errors=True)  # what an earlier version drew must not be promoted
    for name in PUBLIC:
        source = live if live.has("tables", name) else recorded
        meta = stores.read_meta(source.path("tables", name))
        recorded.write("tables", name, frame=source.read("tables", name), meta=meta)
    # A run that was interrupted does not know how long it took: the minutes of the record stay.
    timed = live if live.has("tables", MINUTES) else recorded
    recorded.write("tables", MINUTES, frame=timed.read("tables", MINUTES), meta={})
    _draw_anew(recorded, known)


def _draw_anew(recorded, known):
    """Make tables, figures, numbers and executed notebooks from the recorded traces, and put them in their places."""
    _derived(recorded, known)
    # 04 reads the scores that 03 makes.
    run_all(stores.RECORDED, after=lambda: _derived(recorded, known))
    for folder in DERIVED:
        _replace(recorded.writes / folder, paths.DATA / folder, known)
    figure_map = (paths.FIGURES / "FIGURE_MAP.csv").read_bytes()
    _replace(recorded.writes / "figures", paths.FIGURES, known)
    (paths.FIGURES / "FIGURE_MAP.csv").write_bytes(figure_map)
    known = numbers.collect(recorded)
    stores.write(paths.DATA / "tables" / f"{numbers.NAME}.csv", known, "tables", {})
    readme = paths.ROOT / "README.md"
    readme.write_text(numbers.filled(readme.read_text(encoding="utf-8"), known), encoding="utf-8")
    for notebook in notebooks():
        executed = cleaned(nbformat.read(paths.RESULTS / stores.RECORDED / "notebooks" / notebook.name, as_version=4))
        for cell in executed.cells:
            if cell.cell_type == "markdown":
                cell.source = numbers.filled(cell.source, known)
        nbformat.write(executed, notebook)


def _kept(live, recorded):
    """Return the published targets that keep their recorded files because the live store has not asked them.

    Raises
    ------
    UserError
        A target is half in the live store, or in neither, or the corpus it was asked is another one.
    """
    kept = []
    for kind, product in (("chat", "traces"), ("guard", "guards")):
        for name, default in targets.published(kind)["default"].items():
            there = [live.has(part, CORPUS, name) for part in (product, "labels")]
            if all(there):
                continue
            if default == "yes" or any(there) or not recorded.has("labels", CORPUS, name):
                command = "reproduce" if default == "yes" else "second-family"
                raise UserError(f"the live store lacks answers of {name}, or their labels; run make {command}")
            kept.append(name)
    if kept and live.has("corpus", CORPUS):
        corpora = [stores.frame_hash(store.read("corpus", CORPUS)) for store in (live, recorded)]
        if corpora[0] != corpora[1]:
            raise UserError(f"the corpus has changed, and {kept[0]} was not asked again; run make second-family")
    return kept


def _derived(recorded, known):
    """Copy what the recorded notebooks have made so far to where the next one reads it."""
    for folder in DERIVED:
        _copy(recorded.writes / folder, paths.DATA / folder, known)


def _copy(source, destination, targets, kept=()):
    """Copy a folder's publishable files over another's, but none of a kept target; return their relative paths."""
    found = [path for path in source.rglob("*") if path.is_file() and _publishable(path, targets)]
    wanted = {path.relative_to(source) for path in found if not _is_of(path, kept)}
    for name in wanted:
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination / name)
    return wanted


def _replace(source, destination, targets, kept=()):
    """Copy a folder's publishable files over another's, and remove there what is neither among them nor kept."""
    wanted = _copy(source, destination, targets, kept)
    for path in destination.rglob("*"):
        if path in validation.INPUTS or _is_of(path, kept):
            continue
        if path.is_file() and path.relative_to(destination) not in wanted:
            path.unlink()


def _is_of(path, targets):
    """Return whether a file belongs to one of these targets, or to the model of one."""
    return _stem(path) in targets or path.parent.name in {querying.model_of(name) for name in targets}


def _stem(path):
    return path.name.removesuffix(".meta.json").rpartition(".")[0]


def _publishable(path, targets):
    stem = _stem(path)
    if path.suffix in (".lock", ".corrupt", ".tmp") or ".parts" in path.parent.name:
        return False
    if path.parents[1].name in ("traces", "guards", "labels", "pairs", "scores", "training", *ON_REQUEST):
        return path.parent.name == CORPUS and stem in targets
    if path.parent.name in ("generated", "corpus", encoder.NAME):
        return stem.removesuffix(".drifts") == CORPUS
    if path.parents[1].name == "vectors":
        return path.parent.name in {querying.model_of(name) for name in targets}
    return not stem.startswith("most_confused_") or stem.removeprefix("most_confused_") in targets


def cleaned(notebook):
    """Remove what a run leaves behind, but keep tags, outputs and execution counts.

    Parameters
    ----------
    notebook : nbformat.NotebookNode

    Returns
    -------
    nbformat.NotebookNode
    """
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            # Warnings and progress bars vary from run to run.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    # What is printed arrives in pieces that vary from run to run.
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    return notebook


def html():
    """Write one readable report of all recorded notebooks, and the explorer of all recorded rejections."""
    from nbconvert import HTMLExporter

    joined = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for notebook in notebooks():
        joined.cells += nbformat.read(notebook, as_version=4).cells
    for number, cell in enumerate(joined.cells):
        cell.id = f"cell-{number}"
    body, _ = HTMLExporter(template_name="classic", embed_images=True).from_notebook_node(
        joined, resources={"metadata": {"name": "ParaGuard"}}
    )
    path = paths.RESULTS / "report.html"
    path.parent.mkdir(exist_ok=True)
    path.write_text(body, encoding="utf-8")
    print(f"the report is {paths.shown(path)}")
    page = paths.RESULTS / "explorer.html"
    explorer.write(stores.Store(stores.RECORDED), CORPUS, freeze({"store": stores.RECORDED, "corpus": CORPUS}), page)
    print(f"the explorer is {paths.shown(page)}")
