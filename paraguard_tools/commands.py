"""The study's commands; they need more packages than those in `logs.commands`.

Each command imports its modules itself, so that none waits for those of another. The
parameters of a command are its options, however many there are.
"""

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
import yaml

from paraguard_lab.settings import PUBLIC_GATES
from paraguard_tools.logs.commands import OPTIONS, app
from paraguard_tools.logs.names import show_name
from paraguard_utils import paths
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import SettingsError, UserError
from paraguard_utils.settings import (
    CORPUS,
    BuildSettings,
    QuerySettings,
    StudySettings,
    check_settings,
)
from paraguard_utils.stores import LIVE, RECORDED, CorpusFiles, Store

corpus_app = typer.Typer(
    help="Build a corpus from public benchmarks, and let people judge its paraphrases.",
    **OPTIONS,
)
app.add_typer(corpus_app, name="corpus")

StoreOption = Annotated[str, typer.Option(help="Folder under results/, or the record.")]
LiveStoreOption = Annotated[str, typer.Option(help="Folder under results/.")]
ModelOption = Annotated[
    str, typer.Option(help="Hub id, folder, .gguf file or packaged name.")
]
CorpusOption = Annotated[str, typer.Option(help="Name of a corpus.")]
_XSTestAnswers = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="With xstest_v2_completions_*.csv, as published."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Of what is drawn at random.")]
BenchmarkOption = Annotated[
    str, typer.Option(metavar="FILE", help="Its prompts, as published; docs/usage.md.")
]
_RISK = BuildSettings.model_fields["risk"].default


def require_live_store(name: str, corpus: str = CORPUS) -> Store:
    """Return a store that may be written, so not the recorded one.

    Raise SettingsError if it may not.
    """
    if name == RECORDED:
        raise SettingsError(
            "the recorded store is not written; name a live one, for example --store"
            " live"
        )
    return Store(check_settings({"store": name, "corpus": corpus}, StudySettings).store)


def require_checkout() -> ModuleType:
    """Return the module that runs notebooks.

    Raise UserError if the package is installed without them.
    """
    if not paths.CHECKOUT:
        raise UserError(
            "this needs the notebooks and the record: clone the project and run it"
            " there"
        )
    from paraguard_lab import run

    return run


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Numbers, such as 02 03.", show_default="all but 01 and A2"
        ),
    ] = None,
    model: ModelOption = "",
    store: Annotated[
        str,
        typer.Option(
            help="Folder under results/.", show_default="recorded, or live with a model"
        ),
    ] = "",
    corpus: Annotated[
        str, typer.Option(help="Name of a corpus.", show_default=CORPUS)
    ] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--parameter",
            metavar="NAME=VALUE",
            help="Any parameter of these notebooks; repeatable.",
        ),
    ] = None,
) -> None:
    """Run notebooks in order, with progress on the terminal.

    What was asked already is not asked again.

    Example: paraguard run --model Qwen/Qwen2.5-7B-Instruct -p
    system_prompts="[none, safety]"
    """
    named = {"model": model, "store": store, "corpus": corpus}
    given = {name: value for name, value in named.items() if value}
    for text in parameter or ():
        name, equals, value = text.partition("=")
        try:
            given[name] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):  # such as month 13
            equals = ""
        if not equals:
            raise SettingsError(
                f"-p {show_name(text)}: write -p NAME=VALUE, for example -p k=3 or -p"
                " system_prompts='[none, safety]'"
            )
    finished = require_checkout().run_notebooks(notebooks or (), given)
    from paraguard_tools.pages import ending

    for line in ending.describe_run(finished):
        print(show_name(line, 5_000))


@app.command()
def train(
    xstest: _XSTestAnswers,
    out: Annotated[
        Path | None, typer.Option(help="JSON file of coefficients to write.")
    ] = None,
) -> None:
    """Fit the classifier of refusals anew, on XSTest's answers and our own.

    Of XSTest's answers, it learns from the half that is not held out.

    Example: paraguard train --xstest xstest/model_completions --out
    refusal_classifier.json
    """
    from paraguard_lab.labels import agreement, training
    from paraguard_utils.labels import classifier

    annotated = agreement.select_training_answers(agreement.read_xstest_answers(xstest))
    own = training.read_training_answers()
    out = out or classifier.CLASSIFIER_FILE
    training.save_classifier(training.fit_classifier(own, annotated), out)
    print(
        f"{out}: fitted on {len(annotated)} of XSTest's answers and {len(own)} of ours"
    )


@app.command()
def agreement(
    xstest: _XSTestAnswers,
    judge: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Also let this model judge the answers."),
    ] = "",
    store: LiveStoreOption = LIVE,
) -> None:
    """Compare the labels with people's on XSTest's annotated answers.

    The tables xstest_* are written.

    Example: paraguard agreement --xstest xstest/model_completions
    """
    from paraguard_lab.labels import agreement as agreements
    from paraguard_utils.report import tables

    live = require_live_store(store)
    table = agreements.write_xstest_tables(xstest, live, judge)["xstest_agreement"]
    about = ["file", "part", "labeller", "n", "accuracy"]
    print(tables.format_estimates(table, ["kappa"], about).to_string(index=False))


@app.command()
def explorer(
    store: StoreOption = RECORDED,
    corpus: CorpusOption = CORPUS,
    model: ModelOption = "",
) -> None:
    """Write one page on which the refusals of a store can be explored.

    The page needs no network.

    Example: paraguard explorer --store live --model Qwen/Qwen2.5-7B-Instruct
    """
    require_checkout()  # raises if there is no checkout
    from paraguard_tools.pages import site

    given = {"store": store, "corpus": corpus, "model": model}
    site.write_explorer(check_settings(given, StudySettings))


@app.command()
def remedy(
    model: Annotated[str, typer.Option(help="As 02 and 03 were given it.")],
    store: StoreOption = LIVE,
    corpus: CorpusOption = CORPUS,
    system_prompt: Annotated[
        str, typer.Option(help="Instruction under which it refuses too much.")
    ] = "safety",
) -> None:
    """Say what to do about a model that refuses too much.

    It says where the model is brittle and which remedy is the cheapest, and gives a
    tuning file. After 02 and 03 on that model.

    Example: paraguard remedy --model Qwen/Qwen2.5-7B-Instruct
    """
    given = {"store": store, "corpus": corpus, "model": model}
    config = check_settings(given | {"system_prompts": [system_prompt]}, QuerySettings)
    if store == RECORDED:
        require_checkout()  # raises if there is no record
    from paraguard_tools.pages import advice

    print("\n".join(advice.write_advice(config)))


@corpus_app.command()
def build(
    phtest: BenchmarkOption = "",
    ebench: BenchmarkOption = "",
    orbench: BenchmarkOption = "",
    xstest: BenchmarkOption = "",
    clusters: Annotated[int, typer.Option(min=1, help="How many.")] = 2000,
    labels: Annotated[
        list[str],
        typer.Option("--label", help="Harmfulness label to keep; repeatable."),
    ] = ["harmless"],  # noqa: B006
    risk: Annotated[str, typer.Option(help="Risk scorer, as in notebook 01.")] = _RISK,
    min_strategies: Annotated[
        int,
        typer.Option(
            min=1,
            max=4,
            help="Strategies a cluster must hold: many a prompt has no word to soften.",
        ),
    ] = PUBLIC_GATES.min_strategies,
    seed: SeedOption = SEED,
    store: LiveStoreOption = LIVE,
    name: Annotated[str, typer.Option(help="Name of the corpus.")] = "public",
) -> None:
    """Build a corpus of gated paraphrases, resumably, and print its yields.

    The seeds come from public benchmarks' published files.

    Example: paraguard corpus build --orbench or-bench-hard-1k.csv --clusters 500
    """
    named = {"phtest": phtest, "ebench": ebench, "orbench": orbench}
    files = {benchmark: file for benchmark, file in named.items() if file}
    if not files:
        raise SettingsError(
            "name at least one benchmark file: --phtest, --ebench or --orbench"
        )
    live = require_live_store(store, name)
    from paraguard_lab.corpus.build import PublicCorpus, build_public_corpus

    build_public_corpus(
        PublicCorpus(
            files=CorpusFiles(live, name),
            sources=files,
            labels=labels,
            clusters=clusters,
            min_strategies=min_strategies,
            risk=risk,
            seed=seed,
            xstest=xstest,
        )
    )


@corpus_app.command()
def describe(
    store: LiveStoreOption = LIVE,
    corpus: CorpusOption = "public",
    seed: SeedOption = SEED,
) -> None:
    """Write what may be published of a corpus whose texts must not be.

    These are rates by model, benchmark and cohort. After 02, 03, 04 and 06 on that
    corpus.

    Example: paraguard corpus describe --store live
    """
    live = require_live_store(store, corpus)
    from paraguard_lab.report import full_scale
    from paraguard_utils.report import tables

    found = full_scale.describe_full_scale(CorpusFiles(live, corpus), seed)
    about = ["system", "source", "n_scored", "n_reject", "too_few_for_dr"]
    print(
        tables.format_estimates(found["sources"], ["frr", "dr"], about).to_string(
            index=False
        )
    )


@corpus_app.command()
def sheet(
    store: StoreOption = RECORDED,
    corpus: CorpusOption = CORPUS,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Pairs.")] = 100,
    seed: SeedOption = SEED,
) -> None:
    """Draw paraphrases for people to compare with their seeds.

    The sheet is a CSV with an empty column for marks.

    Example: paraguard corpus sheet --store live --corpus mine
    """
    check_settings({"store": store, "corpus": corpus}, StudySettings)
    if store == RECORDED:
        require_checkout()  # raises if there is no record
    from paraguard_lab.corpus import fidelity

    print(fidelity.write_sheet(CorpusFiles(Store(store), corpus), n, seed))


@corpus_app.command()
def read(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FIRST.csv [SECOND.csv]", help="Filled-in copies of a sheet."
        ),
    ],
) -> None:
    """Read one or two filled-in sheets and say how often the meaning shifted.

    It prints the share of shifted pairs, and how far two readers agree.

    Example: paraguard corpus read first.csv second.csv
    """
    if len(files) > 2:
        raise SettingsError("one or two sheets can be read")
    from paraguard_lab.corpus import fidelity

    sheets = [fidelity.read_sheet(paths.resolve_input(name)) for name in files]
    print("\n".join(fidelity.describe_sheets(sheets)))


@app.command()
def reproduce() -> None:
    """Run every notebook live, and compare with the record.

    The default model is asked for real.

    Example: paraguard reproduce
    """
    require_checkout().reproduce_live()


@app.command()
def optional_models() -> None:
    """Query the optional models too, one of which also judges all answers.

    Example: paraguard optional-models
    """
    require_checkout().ask_optional_models()


@app.command()
def remedies(
    xstest: BenchmarkOption = "",
) -> None:
    """Apply every remedy to the default model in the live store, resumably.

    An hour and more on two cores.

    Example: paraguard remedies
    """
    require_checkout().ask_remedies(xstest)


@app.command()
def figures() -> None:
    """Redraw all tables and figures from recorded traces, without a model.

    Example: paraguard figures
    """
    require_checkout().redraw_figures()


@app.command()
def record() -> None:
    """Promote a live run to data/, figures/ and the committed notebooks.

    Example: paraguard record
    """
    require_checkout()  # raises if there is no checkout
    from paraguard_lab import record as records

    records.promote_live_run()


@app.command()
def card() -> None:
    """Fill in the data card from the files in data/, and write data/croissant.json.

    Example: paraguard card
    """
    require_checkout()  # raises if there is no checkout
    from paraguard_lab.report import croissant, numbers

    croissant.write_card(Store(RECORDED).read("tables", numbers.NUMBERS_TABLE))


@app.command()
def numbers() -> None:
    """Fill the numbers in README and the data card anew from the recorded tables.

    Example: paraguard numbers
    """
    require_checkout()  # raises if there is no checkout
    from paraguard_lab import record as records

    changed = records.refill_numbers()
    names = ", ".join(paths.display_path(path) for path in changed)
    print(f"changed: {names or 'nothing'}")


@app.command()
def html(
    out: Annotated[
        Path | None, typer.Option(help="Folder; without it, results/.")
    ] = None,
) -> None:
    """Write the site of the record.

    It has a first page, the report, the explorer, the data card and the method.

    Example: paraguard html --out site
    """
    require_checkout()  # raises if there is no checkout
    from paraguard_tools.pages import site

    site.write_html(out)


@app.command()
def weights() -> None:
    """Check that the packaged weights are there and are what they should be.

    Example: paraguard weights
    """
    from paraguard_utils.models.weights import MINILM_FILE, SMOLLM2_FILE, locate_weights

    for packaged in (SMOLLM2_FILE, MINILM_FILE):
        locate_weights(packaged)
        print(f"ok  {packaged.parts[0][0]}: {packaged.name}")


@app.command()
def convert(
    model: Annotated[
        str, typer.Argument(help="Packaged name, .gguf file, folder or hub id.")
    ],
) -> None:
    """Print the folder of a model's weights as any server takes them.

    Packed weights are converted.

    Example: paraguard convert smollm2-135m-instruct
    """
    from paraguard_lab.models import gguf
    from paraguard_utils.models import loading

    print(gguf.convert_gguf(loading.resolve_model(model)))
