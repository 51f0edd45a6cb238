"""The command line: `paraguard`, or `python -m paraguard_tools`."""

import sys

import typer

from paraguard_tools.logs.commands import app
from paraguard_utils.errors import UserError
from paraguard_utils.seams import find_extensions, load_extension
from paraguard_utils.text import show_name

_NOT_INSTALLED = "the package {} is not installed; install paraguard-utils[notebooks]"
_MAX_LINE = 5_000  # characters of an error

NEEDED = ""  # the package for the want of which some commands are not there

for package in find_extensions("commands"):
    try:
        load_extension("commands", package)  # adds its commands to the app
    except ModuleNotFoundError as missing:
        NEEDED = str(missing.name)


UsageError: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""What a wrong command line raises: typer has it from another package, or as its own,
by version.
"""


def main() -> None:
    """Run one command, and tell errors in one line on stderr.

    Errors are whatever its user did wrong, or the system refuses. Names in them cannot
    begin a line, or change how a terminal shows it.
    """
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            words = " ".join(error.format_message().split())  # type: ignore[attr-defined]
            if NEEDED and words.startswith("No such command"):
                sys.exit(_NOT_INSTALLED.format(NEEDED))
            context = getattr(error, "ctx", None)
            place = context.command_path if context else "paraguard"
            line = f"{_show_line(words)} ({place} -h says what there is)"
            print(line, file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except UserError as error:
        sys.exit(_show_line(str(error)))
    except ModuleNotFoundError as error:
        sys.exit(_NOT_INSTALLED.format(error.name))
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
