"""The command line: `paraguard`, or `python -m paraguard_utils`."""

import sys

from paraguard_utils.errors import UserError
from paraguard_utils.logs.commands import app

NEEDED = ""
"""The package for the want of which the study's commands are not there."""

try:
    import paraguard_utils.commands  # noqa: F401  (adds them to the app)
except ModuleNotFoundError as missing:
    NEEDED = str(missing.name)


def main() -> None:
    """Run one command; a user's error, a missing package, or a file that the system refuses is one line on stderr."""
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    if NEEDED and len(sys.argv) > 1 and not sys.argv[1].startswith("-") and sys.argv[1] not in known:
        sys.exit(f"the package {NEEDED} is not installed; install paraguard-utils[notebooks]")
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
