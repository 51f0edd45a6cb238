"""The command line: `paraguard`, or `python -m paraguard_utils`.

Modules are imported where a command needs them: labelling answers takes no model library.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import typer
import yaml

from paraguard_utils import paths
from paraguard_utils.errors import SettingsError, UserError
from paraguard_utils.settings import CORPUS, PUBLIC_GATES, Settings, check
from paraguard_utils.stores import LIVE, RECORDED

OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(help="Measure how sensibly a model or a guard refuses.", **OPTIONS)
corpus_app = typer.Typer(help="Build a corpus from public benchmarks, and let people judge its paraphrases.", **OPTIONS)
app.add_typer(corpus_app, name="corpus")

AnyStore = Annotated[str, typer.Option(help="Folder under results/, or the record.")]
LiveStore = Annotated[str, typer.Option(help="Folder under results/.")]
ModelName = Annotated[str, typer.Option(help="Hub id, folder, .gguf file or packaged name.")]
CorpusName = Annotated[str, typer.Option(help="Name of a corpus.")]


def live(name: str) -> str:
    """Return the name of a store that may be written.

    Raises
    ------
    SettingsError
        It is the recorded one, or no name of a store.
    """
    if name == RECORDED:
        raise SettingsError("the recorded store is not written; name a live one, for example --store live")
    return check({"store": name, "corpus": CORPUS}).store


def runs() -> ModuleType:
    """Return the module that runs notebooks.

    Raises
    ------
    UserError
        There are none: the package is installed by itself.
    """
    if not paths.CHECKOUT:
        raise UserError("this needs the notebooks and the record: clone the project and run it there")
    from paraguard_utils import run

    return run


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Numbers, such as 02 03.", show_default="all but 01 and 08")
    ] = None,
    model: ModelName = "",
    store: Annotated[
        str, typer.Option(help="Folder under results/.", show_default="recorded, or live with a model")
    ] = "",
    corpus: Annotated[str, typer.Option(help="Name of a corpus.", show_default=CORPUS)] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Any parameter of these notebooks; repeatable."),
    ] = None,
) -> None:
    """Run notebooks in order, with progress on the terminal; what was asked already is not asked again.

    Example: paraguard run --model Qwen/Qwen2.5-7B-Instruct -p wrappers="[none, safety]"
    """
    given = {name: value for name, value in (("model", model), ("store", store), ("corpus", corpus)) if value}
    for text in parameter or ():
        name, equals, value = text.partition("=")
        try:
            given[name] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # such as a date that is none
            equals = ""
        if not equals:
            raise SettingsError(f"-p {text}: write -p NAME=VALUE, for example -p k=3 or -p wrappers='[none, safety]'")
    runs().run(notebooks or (), given)


@app.command()
def label(
    file: Annotated[Path, typer.Argument(help="CSV of answers; a column finish_reason is used where there is one.")],
    column: Annotated[str, typer.Option(help="Column of the answers.")] = "response",
    request: Annotated[str, typer.Option(help="Column of what was asked, where there is one.")] = "",
    labeller: Annotated[
        Literal["combined", "cues"], typer.Option(help="Cue list and classifier, or the cue list alone (no torch).")
    ] = "combined",
) -> None:
    """Label answers as accepted or refused: the file with label, kind, rule and p_refusal, on standard output.

    Example: paraguard label answers.csv --column completion --request prompt > labelled.csv
    """
    from paraguard_utils.querying import labelling

    try:
        labelled = labelling.label_file(file, column, request, labeller)
    except ImportError as error:
        raise UserError(
            f"the classifier needs a package that is not there ({error.name}): pip install '.[models]', "
            "or label by the cue list alone, with --labeller cues"
        ) from None
    labelled.to_csv(sys.stdout, index=False)


@app.command()
def audit(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Decisions or answers, - for standard input; two with --compare."),
    ] = None,
    text: Annotated[str, typer.Option(help="Column of the requests.", show_default="text, prompt, ...")] = "",
    answer: Annotated[str, typer.Option(help="Column of the answers.", show_default="answer, response, ...")] = "",
    decision: Annotated[str, typer.Option(help="Column of the decisions.", show_default="decision, refused, ...")] = "",
    cluster: Annotated[
        str, typer.Option(help="Column of clusters; none: near neighbours.", show_default="cluster, ...")
    ] = "",
    system: Annotated[str, typer.Option(help="Column of systems.", show_default="system, model, ...")] = "",
    harmful: Annotated[str, typer.Option(help="Column: should be refused.", show_default="harmful, ...")] = "",
    reading: Annotated[str, typer.Option(help="Column of what a reader says.", show_default="reading")] = "",
    rejects: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="A decision that is a refusal, all others not; repeatable."),
    ] = None,
    requests: Annotated[str, typer.Option("--input", metavar="FILE", help="Input file of a batch.")] = "",
    labeller: Annotated[str, typer.Option(help="cues or combined, for answers.", show_default="the better one")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder to write to.", show_default="results/audit/FILE")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare two logs of the same clusters.")] = False,
    baseline: Annotated[str, typer.Option(metavar="FILE", help="Fail where it got worse than this log.")] = "",
    margin: Annotated[float, typer.Option(help="How much worse than the baseline is still not worse.")] = 0.0,
    fail_above: Annotated[float | None, typer.Option(min=0, help="Fail where the measure is above this.")] = None,
    measure: Annotated[Literal["dr", "frr"], typer.Option(help="What --fail-above and --baseline judge.")] = "dr",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write what was found.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the gate's verdicts.")] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Append Markdown, for a job's page.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say how many clusters give which interval.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Audit 1,620 recorded decisions of SmolLM2.")] = False,
) -> None:
    """Audit decisions or answers of any model or guard: how often and how sensibly it refuses.

    Exit codes: 0 not worse, 1 error, 2 usage, 3 worse, 4 too little to say. Example: paraguard audit log.jsonl
    """
    from paraguard_utils.logs import commands

    named = {"text": text, "answer": answer, "decision": decision, "cluster": cluster, "system": system}
    named |= {"harmful": harmful, "reading": reading}
    wanted = commands.Wanted(
        named, tuple(rejects or ()), requests, labeller, out, baseline, margin, fail_above, measure
    )
    files = [*(files or ()), *([str(paths.DATA / "demo.csv")] if demo else [])]
    if len(files) != (0 if plan and not files else 1 + compare):
        raise SettingsError("name one file, two with --compare, or --demo")
    if plan:
        print(commands.planned(files, wanted))
    elif compare:
        print(commands.compared(files[0], files[1], wanted))
    else:
        sys.exit(commands.audited(files[0], wanted, {"json": json_file, "junit": junit, "summary": summary}))


@app.command()
def train(
    xstest: Annotated[Path, typer.Option(metavar="FOLDER", help="With xstest_v2_completions_*.csv, as published.")],
    out: Annotated[Path | None, typer.Option(help="JSON file of coefficients to write.")] = None,
) -> None:
    """Fit the classifier of refusals anew, on the half of XSTest's answers that is not held out and on our own.

    Example: paraguard train --xstest xstest/model_completions --out refusal_classifier.json
    """
    from paraguard_utils.querying import agreement, classifier

    annotated, own = agreement.for_training(agreement.read_answers(xstest)), classifier.training_answers()
    out = out or classifier.FILE
    classifier.fit(own, annotated).save(out)
    print(f"{out}: fitted on {len(annotated)} of XSTest's answers and {len(own)} of ours")


@app.command()
def agreement(
    xstest: Annotated[Path, typer.Option(metavar="FOLDER", help="With xstest_v2_completions_*.csv, as published.")],
    judge: Annotated[str, typer.Option(metavar="MODEL", help="Also let this model judge the answers.")] = "",
    store: LiveStore = LIVE,
) -> None:
    """Compare the labels with people's on XSTest's annotated answers, and write the tables xstest_*.

    Example: paraguard agreement --xstest xstest/model_completions
    """
    from paraguard_utils.querying import agreement as agreements
    from paraguard_utils.stores import Store

    table = agreements.validate(xstest, Store(live(store)), judge)["xstest_agreement"]
    shown = ["file", "part", "labeller", "n", "accuracy", "kappa", "kappa_low", "kappa_high"]
    print(table[shown].to_string(index=False))


@app.command()
def explorer(store: AnyStore = RECORDED, corpus: CorpusName = CORPUS, model: ModelName = "") -> None:
    """Write one page on which the rejections of a store can be explored, without a network.

    Example: paraguard explorer --store live --model Qwen/Qwen2.5-7B-Instruct
    """
    runs().explore(check({"store": store, "corpus": corpus, "model": model}))


@app.command()
def remedy(
    model: Annotated[str, typer.Option(help="As 02 and 03 were given it.")],
    store: AnyStore = LIVE,
    corpus: CorpusName = CORPUS,
    wrapper: Annotated[str, typer.Option(help="Instruction under which it refuses too much.")] = "safety",
) -> None:
    """Say what to do about a model that refuses too much: where it is brittle, the cheapest remedy, a tuning file.

    After 02 and 03 on that model. Example: paraguard remedy --model Qwen/Qwen2.5-7B-Instruct
    """
    config = check({"store": store, "corpus": corpus, "model": model, "wrappers": [wrapper]})
    if store == RECORDED:
        runs()  # says so where there is no record
    from paraguard_utils.report import advice

    print("\n".join(advice.write(config)))


@corpus_app.command()
def build(
    phtest: Annotated[str, typer.Option(metavar="FILE", help="PHTest v0.1 (An et al., COLM 2024).")] = "",
    ebench: Annotated[str, typer.Option(metavar="FILE", help="USEBench's E-Bench (Mai et al., WWW 2025).")] = "",
    orbench: Annotated[str, typer.Option(metavar="FILE", help="OR-Bench Hard-1K (Cui et al., 2024).")] = "",
    xstest: Annotated[
        str, typer.Option(metavar="FILE", help="XSTest's prompts: describe the risk scorer on them too.")
    ] = "",
    clusters: Annotated[int, typer.Option(min=1, help="How many.")] = 2000,
    labels: Annotated[list[str], typer.Option("--label", help="Harmfulness label to keep; repeatable.")] = ["harmless"],  # noqa: B006
    risk: Annotated[str, typer.Option(help="Risk scorer, as in notebook 01.")] = Settings.model_fields["risk"].default,
    min_strategies: Annotated[
        int, typer.Option(min=1, max=4, help="Strategies a cluster must hold: many a prompt has no word to soften.")
    ] = PUBLIC_GATES.min_strategies,
    seed: Annotated[int, typer.Option(help="Of the order in which seeds are drawn.")] = Settings.model_fields[
        "seed"
    ].default,
    store: LiveStore = LIVE,
    name: Annotated[str, typer.Option(help="Name of the corpus.")] = "public",
) -> None:
    """Build a corpus of gated paraphrases from public benchmarks' published files, resumably; print its yields.

    Example: paraguard corpus build --orbench or-bench-hard-1k.csv --clusters 500
    """
    files = {key: file for key, file in (("phtest", phtest), ("ebench", ebench), ("orbench", orbench)) if file}
    if not files:
        raise SettingsError("name at least one benchmark file: --phtest, --ebench or --orbench")
    check({"store": live(store), "corpus": name})
    from paraguard_utils.corpus import build as builds

    builds.from_benchmarks(files, store, name, clusters, labels, risk, min_strategies, seed, xstest)


@corpus_app.command()
def describe(
    store: LiveStore = LIVE,
    corpus: CorpusName = "public",
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = Settings.model_fields["seed"].default,
) -> None:
    """Write what may be published of a corpus whose texts must not be: rates by model, benchmark and cohort.

    After 02, 03, 04 and 09 on that corpus. Example: paraguard corpus describe --store live
    """
    check({"store": live(store), "corpus": corpus})
    from paraguard_utils.report import full_scale, tables
    from paraguard_utils.stores import Store

    found = full_scale.describe(Store(store), corpus, seed)
    shown = tables.shown(found["sources"], ["frr", "dr"], ["target", "source", "n_scored", "n_reject", "few_dr"])
    print(shown.to_string(index=False))


@corpus_app.command()
def sheet(
    store: AnyStore = RECORDED,
    corpus: CorpusName = CORPUS,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Pairs.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = Settings.model_fields["seed"].default,
) -> None:
    """Draw paraphrases for people to compare with their seeds: a CSV with an empty column for marks.

    Example: paraguard corpus sheet --store live --corpus mine
    """
    check({"store": store, "corpus": corpus})
    if store == RECORDED:
        runs()  # says so where there is no record
    from paraguard_utils.corpus import fidelity
    from paraguard_utils.stores import Store

    print(fidelity.write_sheet(Store(store), corpus, n, seed))


@corpus_app.command()
def read(
    files: Annotated[list[str], typer.Argument(metavar="FIRST.csv [SECOND.csv]", help="Filled-in copies of a sheet.")],
) -> None:
    """Read one or two filled-in sheets: the share of shifted pairs, and how far two readers agree.

    Example: paraguard corpus read first.csv second.csv
    """
    if len(files) > 2:
        raise SettingsError("one or two sheets can be read")
    from paraguard_utils.corpus import fidelity
    from paraguard_utils.paths import input_file

    print("\n".join(fidelity.report([fidelity.read_sheet(input_file(name)) for name in files])))


@app.command()
def reproduce() -> None:
    """Run every notebook live, the default model asked for real, and compare with the record.

    Example: paraguard reproduce
    """
    runs().reproduce()


@app.command()
def optional_models() -> None:
    """Ask the optional models too, one of which also judges all answers.

    Example: paraguard optional-models
    """
    runs().optional_models()


@app.command()
def remedies(
    xstest: Annotated[str, typer.Option(metavar="FILE", help="XSTest's prompts: ask its unsafe ones too.")] = "",
) -> None:
    """Apply every remedy to the default model in the live store, resumably; an hour and more on two cores.

    Example: paraguard remedies
    """
    runs().remedies(xstest)


@app.command()
def figures() -> None:
    """Redraw all tables and figures from recorded traces, without a model.

    Example: paraguard figures
    """
    runs().figures()


@app.command()
def record() -> None:
    """Promote a live run to data/, figures/ and the committed notebooks.

    Example: paraguard record
    """
    runs()  # says so where there is no checkout
    from paraguard_utils import record as records

    records.record()


@app.command()
def card() -> None:
    """Fill in the data card from the files in data/, and write data/croissant.json.

    Example: paraguard card
    """
    runs()  # says so where there is no checkout
    from paraguard_utils.report import card as cards
    from paraguard_utils.report import croissant, numbers
    from paraguard_utils.stores import Store

    cards.write(Store(RECORDED).read("tables", numbers.NAME))
    croissant.write()


@app.command()
def html() -> None:
    """Write one readable report and the explorer of all recorded rejections.

    Example: paraguard html
    """
    runs().html()


@app.command()
def weights() -> None:
    """Check that the packaged weights are there and are what they should be.

    Example: paraguard weights
    """
    from paraguard_utils.models.weights import MINILM, SMOLLM2, locate

    for packaged in (SMOLLM2, MINILM):
        locate(packaged)
        print(f"ok  {packaged.parts[0][0]}: {packaged.name}")


@app.command()
def convert(model: Annotated[str, typer.Argument(help="Packaged name, .gguf file, folder or hub id.")]) -> None:
    """Print the folder of a model's weights as any server takes them, converted where they are packed.

    Example: paraguard convert smollm2-135m-instruct
    """
    from paraguard_utils.models import loading

    print(loading.converted(loading.resolve(model)))


def main() -> None:
    """Run one command; a user's error, a missing package, or a file that the system refuses is one line on stderr."""
    try:
        app()
    except UserError as error:
        sys.exit(str(error))
    except ModuleNotFoundError as error:
        sys.exit(f"the package {error.name} is not installed; install paraguard-utils[notebooks]")
    except OSError as error:
        sys.exit(f"{error.filename or 'a file'}: {error.strerror or error}; mend that and run the same command again")


if __name__ == "__main__":
    main()
