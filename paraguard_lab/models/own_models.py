"""Find the weights of a user's model: a folder, a GGUF file or a hub id."""

import hashlib
import re
from pathlib import Path

from paraguard_lab.models.families import check_model_files
from paraguard_utils.errors import ModelError
from paraguard_utils.models import loading, weights
from paraguard_utils.models.loading import ModelSource, first_error_line, slugify_model
from paraguard_utils.settings import SERVED_PREFIX

IDENTITY_FILES = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.model",
    "merges.txt",
    "vocab.txt",
)
"""The files of a model's folder that decide its answers."""

_HUB_ID = re.compile(r"(?![.~])[\w.-]+/[\w.-]+")


def find_own_model(name: str) -> ModelSource:
    """Find the weights of a model that is no packaged one, without loading them.

    Raises
    ------
    ModelError
        The name is none of a folder, a GGUF file or a hub id; the folder or the file
        has no whole model; or the hub's model cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.exists():
        check_model_files(path)
    if path.suffix == ".gguf" and path.is_file():
        digest = weights.hash_file(path)
        slug = slugify_model(path.stem)
        return ModelSource(f"{slug}-{digest[:8]}", digest, path, name)
    if path.is_dir():
        digest = digest_folder(path)
        slug = slugify_model(folder_model_id(path).replace("/", "_"))
        return ModelSource(f"{slug}-{digest[:8]}", digest, path, name)
    if _HUB_ID.fullmatch(name):
        folder = fetch_from_hub(name)
        slug = slugify_model(name.replace("/", "_"))
        return ModelSource(slug, folder.name, folder, name)
    packaged = ", ".join(loading.PACKAGED_MODELS)
    raise ModelError(
        f"model {name!r} is neither a packaged name ({packaged}), nor an existing"
        " folder or .gguf file, nor a hub id such as owner/model"
    )


def folder_model_id(folder: Path) -> str:
    """Return the name of a model's folder.

    For a hub's snapshot, which is named by its commit, that is the hub id.
    """
    folder = folder.resolve()
    for part in reversed(folder.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return folder.name


def digest_folder(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of a folder's `IDENTITY_FILES`."""
    files: set[Path] = set()
    for pattern in IDENTITY_FILES:
        files.update(folder.glob(pattern))
    lines = [f"{file.name} {weights.hash_file(file)}" for file in sorted(files)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fetch_from_hub(name: str) -> Path:
    """Return the folder of a hub model, which is named by its commit."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(IDENTITY_FILES)))
    except Exception as error:  # the hub raises many kinds: offline, unknown, gated
        remedy = "pass a local folder"
        if name.startswith(SERVED_PREFIX):
            remedy = (
                "if a server has this model, say where, for example"
                " -p base_url=http://127.0.0.1:8000/v1; if not, pass a local folder"
            )
        raise ModelError(
            f"hub model {name} cannot be fetched ({first_error_line(error)}); {remedy}"
        ) from error
