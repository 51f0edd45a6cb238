"""Doing the same work again as a processor without AVX-512 would."""

import os
import subprocess
import sys
from pathlib import Path

from paraguard_utils import paths

AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "FAISS_OPT_LEVEL": "avx2",
}
"""Instruction sets that the libraries may use; numpy has a list of what it may not."""

_TESTS = Path(__file__).parent
FOLDERS = [str(_TESTS / name) for name in (".", "utils", "lab", "tools")]
"""Where test modules and their helpers are imported from."""


def environment():
    """Return the environment of a process held to AVX2."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    beyond = [
        name
        for name in __cpu_dispatch__
        if name not in ("X86_V3", "AVX2", "FMA3") and __cpu_features__[name]
    ]
    return os.environ | AVX2 | {"NPY_DISABLE_CPU_FEATURES": " ".join(beyond)}


def elsewhere(module, function, *arguments):
    """Call a function of a test module with texts in a process held to AVX2; return
    what it printed.
    """
    code = (
        f"import sys; sys.path[:0] = {FOLDERS!r}; import {module};"
        f" print({module}.{function}(*sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        code,
        *map(str, arguments),
    ]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=paths.ROOT,
        env=environment(),
        check=True,
    ).stdout.strip()


if __name__ == "__main__":  # run a command held to AVX2
    sys.exit(subprocess.run(sys.argv[1:], env=environment(), check=False).returncode)
