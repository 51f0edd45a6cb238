"""The command line: `paraguard`, or `python -m paraguard_tools`."""

import sys

import typer

from paraguard_tools.logs.commands import app
from paraguard_utils.errors import UserError
from paraguard_utils.seams import find_extensions, load_extension

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
    known = {
        command.name or getattr(command.callback, "__name__", "")
        for command in app.registered_commands
    }
    if (
        NEEDED
        and sys.argv[1:]
        and not sys.argv[1].startswith("-")
        and sys.argv[1] not in known
    ):
        sys.exit(
            f"the package {NEEDED} is not installed; install paraguard-utils[notebooks]"
        )
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            words = " ".join(error.format_message().split())  # type: ignore[attr-defined]
            context = getattr(error, "ctx", None)
            place = context.command_path if context else "paraguard"
            print(f"{words} ({place} -h says what there is)", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    except UserError as error:
        sys.exit(str(error))
    except ModuleNotFoundError as error:
        sys.exit(
            f"the package {error.name} is not installed; install"
            " paraguard-utils[notebooks]"
        )
    except OSError as error:
        sys.exit(
            f"{error.filename or 'a file'}: {error.strerror or error}; mend that and"
            " run the same command again"
        )


if __name__ == "__main__":
    main()
