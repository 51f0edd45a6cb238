"""The command line: `paraguard`, or `python -m paraguard_utils`."""

import sys
from typing import Annotated

import typer
import yaml

from paraguard_utils import record as records
from paraguard_utils import run as runs
from paraguard_utils.errors import SettingsError, UserError
from paraguard_utils.settings import CORPUS

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure how sensibly a model or a guard refuses.",
)


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Numbers, such as 02 03.", show_default="02 to 06")
    ] = None,
    model: Annotated[str, typer.Option(help="Hub id, folder, .gguf file or packaged name.")] = "",
    store: Annotated[
        str, typer.Option(help="Folder under results/.", show_default="recorded, or live with a model")
    ] = "",
    corpus: Annotated[str, typer.Option(help="Name of a corpus.", show_default=CORPUS)] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Any parameter of these notebooks; repeatable."),
    ] = None,
):
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
    runs.run(notebooks or (), given)


@app.command()
def reproduce():
    """Run every notebook live, the default model asked for real, and compare with the record."""
    runs.reproduce()


@app.command()
def second_family():
    """Ask the optional second family too, which also judges all answers."""
    runs.second_family()


@app.command()
def figures():
    """Redraw all tables and figures from recorded traces, without a model."""
    runs.figures()


@app.command()
def record():
    """Promote a live run to data/, figures/ and the committed notebooks."""
    records.record()


@app.command()
def html():
    """Write one readable report and the explorer of all recorded rejections."""
    runs.html()


def main():
    """Run one command; a user's error, or a file that the system refuses, is one line on stderr."""
    try:
        app()
    except UserError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or 'a file'}: {error.strerror or error}; mend that and run the same command again")


if __name__ == "__main__":
    main()
