"""Dequantize a GGUF file once into a folder of safetensors, in the cache."""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from paraguard_lab.models.families import check_model_network
from paraguard_lab.models.own_models import digest_folder
from paraguard_utils import paths
from paraguard_utils.errors import ModelError
from paraguard_utils.models.loading import ModelSource, first_error_line

_DIGEST_FILE = "content.sha256"  # of converted weights, beside them


def convert_gguf(source: ModelSource) -> Path:
    """Return a source's folder in transformers' layout.

    A GGUF file is dequantized to float32 into the cache, the first time; a folder that
    was changed since, by the digest in it, is made again. `ModelError` if that cannot
    be.
    """
    if source.path.suffix != ".gguf":
        return source.path
    folder = paths.CACHE / "models" / source.weights_id[:16]
    if folder.is_dir():
        with contextlib.suppress(OSError):
            written = (folder / _DIGEST_FILE).read_text(encoding="utf-8")
            if written == digest_folder(folder):
                return folder
        print(
            f"{paths.display_path(folder)} cannot be shown to be what was written"
            " there; it is made again",
            file=sys.stderr,
        )
        shutil.rmtree(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    file = {"gguf_file": source.path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.path.parent, **file)
        loader: Any = AutoModelForCausalLM
        network, loaded = loader.from_pretrained(
            source.path.parent,
            dtype="float32",
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **file,
        )
        check_model_network(str(source.path), network, loaded["missing_keys"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            part = Path(place) / folder.name
            network.save_pretrained(part)
            tokenizer.save_pretrained(part)
            digest = digest_folder(part)
            (part / _DIGEST_FILE).write_text(digest, encoding="utf-8")
            os.replace(part, folder)
    except ModelError:
        raise
    except Exception as error:  # a damaged file may raise anything
        if not folder.is_dir():  # another process may have finished first
            raise ModelError(
                f"{source.path}: cannot be read as GGUF, or kept in"
                f" {paths.display_path(folder.parent)} ({first_error_line(error)});"
                " copy it again, see whether transformers knows its architecture, or"
                " move the cache with PARAGUARD_CACHE"
            ) from error
    return folder
