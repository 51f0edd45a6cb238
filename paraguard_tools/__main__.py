"""The command line: `paraguard`, or `python -m paraguard_tools`."""

import io
import sys

import typer

from paraguard_tools.logs.commands import app
from paraguard_tools.logs.names import escape_line
from paraguard_utils.errors import UserError
from paraguard_utils.seams import find_extensions, load_extension

_NOT_INSTALLED = "the package {} is not installed; install paraguard-utils[notebooks]"
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

    Errors are whatever its user did wrong, or the system refuses.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # none where it is closed
            stream.reconfigure(errors="backslashreplace")
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
            said = escape_line(f"{words} ({place} -h says what there is)")
            print(said, file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except UserError as error:
        sys.exit(escape_line(str(error)))
    except ModuleNotFoundError as error:
        sys.exit(_NOT_INSTALLED.format(error.name))
    except OSError as error:
        sys.exit(
            escape_line(
                f"{error.filename or 'a file'}: {error.strerror or error}; mend that"
                " and run the same command again"
            )
        )


if __name__ == "__main__":
    main()
