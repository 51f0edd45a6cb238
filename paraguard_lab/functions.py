"""A user's own functions, which parameters and entries name as `module:function`."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paraguard_utils import paths
from paraguard_utils.errors import SettingsError


def load_function(named: str, role: str) -> tuple[Callable[..., Any], str]:
    """Return the function named `module:function`, and the digest of its file.

    The module is looked up beside the caller and in the project. `role` says in an
    error what the function is for, as in "the guard".

    Raises
    ------
    SettingsError
        The module cannot be imported, or holds no such function.
    """
    # papermill runs a notebook in the caller's folder, nbval in the notebook's own.
    for folder in (str(Path.cwd()), str(paths.ROOT)):
        if folder not in sys.path:
            sys.path.append(folder)
    module_name, _, function_name = named.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise SettingsError(
            f"{role} {named} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    code = named.encode()
    if module.__file__:
        code = Path(module.__file__).read_bytes()
    return function, hashlib.sha256(code).hexdigest()[:12]
