"""The command line: `paraguard`, or `python -m paraguard_tools`."""

import io
import itertools
import re
import sys
from typing import Annotated

import typer

from paraguard_tools.logs.commands import app
from paraguard_tools.logs.names import show_name
from paraguard_utils import __version__
from paraguard_utils.errors import UserError
from paraguard_utils.seams import find_extensions, load_extension
from paraguard_utils.text import did_you_mean

_MAX_LINE = 5_000  # characters of an error

YOUR_LOG = ("audit", "label", "threshold")
"""Commands that `pip install .` is enough for."""

STUDY = {
    "A study of your model": ("run", "remedy", "explorer", "convert", "weights"),
    "A corpus of your own": ("corpus",),
    "The record": (
        *("figures", "html", "reproduce", "remedies", "optional-models"),
        *("agreement", "train", "record", "numbers", "card"),
    ),
}
"""Commands that a clone of the project is needed for, by whom they are for."""

NEEDED = ""  # the package for the want of which the study's commands are not there

_OWN_LOG = sys.argv[1:2] and sys.argv[1] in YOUR_LOG

for package in find_extensions("commands"):
    # What the study needs takes long to import, and a log of one's own needs none of it
    if package == "study" and _OWN_LOG:
        continue
    try:
        load_extension("commands", package)  # adds its commands to the app
    except ModuleNotFoundError as missing:
        NEEDED = str(missing.name)


UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""What a wrong command line raises: typer has it from another package, or as its own,
by version.
"""

_SETUP = "in a clone of the project, run make setup"


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"paraguard {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""


def list_by_reader() -> str:
    """Return the end of the help: the commands by whom they are for."""
    needs = f" ({_SETUP})" if NEEDED else ""
    lines = [f"Your own log: {', '.join(YOUR_LOG)}"]
    lines += [f"{title}{needs}: {', '.join(names)}" for title, names in STUDY.items()]
    return "\n\n".join(lines)


def explain_usage(error: Exception) -> str:
    """Return one line about a wrong command line."""
    words = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    place = context.command_path if context else "paraguard"
    is_first = context is None or context.parent is None
    if words.startswith("No such command") and is_first:
        # By version, the library itself asks what was meant.
        words = re.split(r"\.? \(?Did you mean", words)[0].rstrip(".")
        name = words.split("'")[1]
        study = [*itertools.chain.from_iterable(STUDY.values())]
        if NEEDED and name in study:
            return _explain_missing(NEEDED)
        words += did_you_mean(name, [*YOUR_LOG, *study])
    return f"{words} ({place} -h says what there is)"


def _explain_missing(package: str) -> str:
    return f"the package {package} is not installed; {_SETUP}"


def main() -> None:
    """Run one command, and tell errors in one line on stderr.

    Errors are whatever its user did wrong, or the system refuses. Names in them cannot
    begin a line, or change how a terminal shows it.
    """
    app.info.epilog = list_by_reader()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may be no UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            print(_show_line(explain_usage(error)), file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except UserError as error:
        sys.exit(_show_line(str(error)))
    except ModuleNotFoundError as error:
        sys.exit(_explain_missing(str(error.name)))
    except OSError as error:
        sys.exit(
            _show_line(
                f"{error.filename or 'a file'}: {error.strerror or error}; mend that"
                " and run the same command again"
            )
        )


def _show_line(message: str) -> str:
    return show_name(message, _MAX_LINE)


if __name__ == "__main__":
    main()
