"""Guards that come as packages: how a text is scored with each (`docs/method.md`, Guards).

Of the less known ones data files are read that have the digest that `data/guards.yaml` names, pickles by a reader that
knows numbers, words and nothing that could run. Their code is not run, but for the layers of one network.
"""

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy._core.multiarray import scalar

from paraguard_utils.errors import Missing
from paraguard_utils.guards.contract import Scorer
from paraguard_utils.models.weights import PackagedFile, locate

REQUIREMENTS = "requirements-guards.txt"

Score: TypeAlias = Callable[[Sequence[str]], np.ndarray | Sequence[float]]
"""Texts to probabilities of being unsafe."""


def scorer(name: str, entry: Mapping[str, Any]) -> Scorer:
    """Return the scorer of a packaged guard; the package is looked for when the first text is scored.

    Parameters
    ----------
    name : str
        Of the distribution, a key of `_PACKAGES`.
    entry : dict
        Its entry in `data/guards.yaml`: version, and the digests of the files that are read.

    Returns
    -------
    contract.Scorer
        It raises Missing where the package, or one that it needs, is not installed or has another version.
    """

    @cache
    def ready() -> Score:
        _check_version(name, entry["version"])
        files = {
            Path(file).name: locate(PackagedFile(Path(file).name, digest, ((name, file),), REQUIREMENTS))
            for file, digest in entry.get("files", {}).items()
        }
        try:
            return _PACKAGES[name](files)
        except ImportError as error:
            raise Missing(f"the guard {name} needs the package {error.name}; run: {_install(name)}") from None

    return lambda texts, answers=None: ready()(texts)


def _check_version(name: str, pinned: str) -> None:
    """Another version gives other scores under the same name, so it is as good as none."""
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise Missing(f"the package {name} is not installed; run: {_install(name)}") from None
    if found != pinned:
        raise Missing(
            f"the package {name} has version {found}, and the guard is version {pinned}; run: {_install(name)}"
        )


def _install(name: str) -> str:
    return f"make setup, or python -m pip install --no-deps -r {REQUIREMENTS}, where {name} is pinned"


class _Plain:
    """What an object was pickled with, without its code."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


_NUMBERS = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "float64"): np.float64,
    ("numpy", "int64"): np.int64,
    ("numpy._core.multiarray", "scalar"): scalar,
}


def _known(module: str, name: str, objects: Sequence[str], more: Mapping[tuple[str, str], Any]) -> Any:
    """Return what a name in a pickle stands for: an object without its code, or a kind of number."""
    if name in objects:
        return _Plain
    if (module, name) in more:
        return more[module, name]
    raise pickle.UnpicklingError(f"{module}.{name} is not read")


def _read_pickle(path: Path, *objects: str) -> dict[str, Any]:
    """Read a pickled object's attributes; `objects` names the classes that may occur."""

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _known(module, name, objects, {})

    with path.open("rb") as file:
        return vars(Reader(file).load())


def _read_joblib(path: Path, *objects: str) -> dict[str, Any]:
    """Read an object's attributes from joblib's form of a pickle, which keeps arrays outside of it."""
    from joblib import numpy_pickle

    known = {**_NUMBERS, ("joblib.numpy_pickle", "NumpyArrayWrapper"): numpy_pickle.NumpyArrayWrapper}

    class Reader(numpy_pickle.NumpyUnpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _known(module, name, objects, known)

    with path.open("rb") as file:
        return vars(Reader(str(path), file, ensure_native_byte_order=True, mmap_mode=None).load())


def _alt_profanity_check(_: Mapping[str, Path]) -> Score:
    from profanity_check import predict_prob

    return lambda texts: predict_prob(list(texts))


def _better_profanity(_: Mapping[str, Path]) -> Score:
    from better_profanity import Profanity

    guard = Profanity()
    return lambda texts: [float(guard.contains_profanity(text)) for text in texts]


def _hatesonar(files: Mapping[str, Path]) -> Score:
    import onnx
    import onnxruntime

    model = onnx.load(files["model.onnx"])
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            # The default, en_US.UTF-8, is not on every machine; they differ in letters that are no part of a word here.
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def score(texts: Sequence[str]) -> np.ndarray:
        _, found = session.run(None, {"text": np.array(texts, dtype=object)})
        hate, offensive, neither = np.array([[row[label] for label in (0, 1, 2)] for row in found]).T
        top = np.maximum(hate, offensive)
        # At least 0.5 where one of the two is at least as probable as neither.
        return top / (top + neither)

    return score


def _metatronnanoguard(files: Mapping[str, Path]) -> Score:
    import tiktoken
    import torch
    from nanoguard.model import Classifier
    from nanoguard.tokenizer import Tokenizer

    tokenizer = Tokenizer(tiktoken.Encoding(**_read_pickle(files["tokenizer.pkl"], "Encoding")))
    network, _, config = Classifier.from_checkpoint(str(files["model.pt"]))
    length = config.sequence_len

    def probability(text: str) -> float:
        ids = tokenizer.encode(text, length)
        # Its attention has no mask, so the padding is part of what it was trained on.
        padding = [0] * (length - len(ids))
        tokens = torch.tensor([ids + [tokenizer.pad_token_id for _ in padding]])
        mask = torch.tensor([[1] * len(ids) + padding])
        with torch.inference_mode():  # holds for one thread
            return network(tokens, mask).softmax(-1)[0, 1].item()

    def score(texts: Sequence[str]) -> np.ndarray:
        # In batches it is slower, and the last bits would hang on the batch.
        with _one_thread_a_product() as cores, ThreadPoolExecutor(cores) as pool:
            return np.array(list(pool.map(probability, texts)))

    return score


@contextlib.contextmanager
def _one_thread_a_product() -> Iterator[int]:
    """Its products are small, and several threads of one wait for each other; yields how many torch had until now."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def _prompt_guardrail(files: Mapping[str, Path]) -> Score:
    from scipy.special import expit
    from sklearn.feature_extraction.text import TfidfVectorizer

    read = _read_joblib(files["ig_ip_vectorizer.pkl"], "TfidfVectorizer", "TfidfTransformer")
    kept = ("strip_accents", "lowercase", "token_pattern", "ngram_range", "norm", "smooth_idf", "sublinear_tf")
    vectorizer = TfidfVectorizer(**{name: read[name] for name in kept}, vocabulary=read["vocabulary_"])
    vectorizer.idf_ = vars(read["_tfidf"])["idf_"]
    linear = _read_joblib(files["lg_ip_guardrails.pkl"], "LogisticRegression")
    return lambda texts: expit(vectorizer.transform(texts) @ linear["coef_"][0] + linear["intercept_"][0])


_PACKAGES: dict[str, Callable[[Mapping[str, Path]], Score]] = {
    "alt-profanity-check": _alt_profanity_check,
    "better-profanity": _better_profanity,
    "hatesonar": _hatesonar,
    "metatronnanoguard": _metatronnanoguard,
    "prompt-guardrail": _prompt_guardrail,
}
"""From a distribution and its located files to what scores texts."""
