"""Guards that come as packages: how a text is scored with each (`docs/method.md`,
Guards).

Of the less known packages only data files are read: those with the digest that
`data/guards.yaml` names, and pickles by a reader that knows numbers and words and
nothing that could run. Their code is not run, but for one network's layers.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy._core.multiarray import scalar

from paraguard_utils.errors import Missing
from paraguard_utils.guards.contract import GuardScorer
from paraguard_utils.models.weights import PackagedFile, locate_weights

_REQUIREMENTS_FILE = "requirements-guards.txt"

_TextScorer: TypeAlias = Callable[
    [Sequence[str]], np.ndarray | Sequence[float]
]  # from texts to probabilities


def make_package_scorer(name: str, entry: Mapping[str, Any]) -> GuardScorer:
    """Return the scorer of a guard that is a distribution (`name`), with its entry in
    `data/guards.yaml`.

    The package is looked for when the first text is scored: Missing is raised where it,
    or one that it needs, is not installed or has another version.
    """
    install = f"make setup, or python -m pip install --no-deps -r {_REQUIREMENTS_FILE}"

    @cache
    def ready() -> _TextScorer:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise Missing(
                f"the package {name} is not installed; run: {install}"
            ) from None
        if found != entry["version"]:  # it may give other scores under the same name
            raise Missing(
                f"the package {name} has version {found}, and the guard is version"
                f" {entry['version']}; run: {install}"
            )
        files = {
            Path(file).name: locate_weights(
                PackagedFile(
                    Path(file).name, digest, ((name, file),), _REQUIREMENTS_FILE
                )
            )
            for file, digest in entry.get("files", {}).items()
        }
        try:
            return _PACKAGES[name](files)
        except ImportError as error:
            raise Missing(
                f"the guard {name} needs the package {error.name}; run: {install}"
            ) from None

    return lambda texts, answers=None: ready()(texts)


def _read_pickle(path: Path, *objects: str) -> dict[str, Any]:
    """Read an object's attributes from a pickle or joblib file.

    Only classes in `objects` occur, and no code runs.
    """
    from joblib import numpy_pickle

    numbers = {
        ("numpy", name): getattr(np, name)
        for name in ("ndarray", "dtype", "float64", "int64")
    }
    numbers["numpy._core.multiarray", "scalar"] = scalar
    numbers["joblib.numpy_pickle", "NumpyArrayWrapper"] = numpy_pickle.NumpyArrayWrapper

    class Reader(numpy_pickle.NumpyUnpickler):
        def find_class(self, module: str, name: str) -> Any:
            if name in objects:
                return SimpleNamespace  # the attributes of the object, without its code
            if (module, name) in numbers:
                return numbers[module, name]
            raise pickle.UnpicklingError(f"{module}.{name} is not read")

    with path.open("rb") as file:
        return vars(
            Reader(
                str(path), file, ensure_native_byte_order=True, mmap_mode=None
            ).load()
        )


def _alt_profanity_check(_: Mapping[str, Path]) -> _TextScorer:
    from profanity_check import predict_prob

    return lambda texts: predict_prob(list(texts))


def _better_profanity(_: Mapping[str, Path]) -> _TextScorer:
    from better_profanity import Profanity

    guard = Profanity()
    return lambda texts: [float(guard.contains_profanity(text)) for text in texts]


def _hatesonar(files: Mapping[str, Path]) -> _TextScorer:
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
        _, found = session.run(None, {"text": np.array(texts, dtype=object)})
        hate, offensive, neither = np.array(
            [[row[label] for label in (0, 1, 2)] for row in found]
        ).T
        top = np.maximum(hate, offensive)
        # At least 0.5 where one of the two is at least as probable as neither.
        return top / (top + neither)

    return score


def _metatronnanoguard(files: Mapping[str, Path]) -> _TextScorer:
    import tiktoken
    import torch
    from nanoguard.model import Classifier
    from nanoguard.tokenizer import Tokenizer

    tokenizer = Tokenizer(
        tiktoken.Encoding(**_read_pickle(files["tokenizer.pkl"], "Encoding"))
    )
    network, _, config = Classifier.from_checkpoint(str(files["model.pt"]))
    length = config.sequence_len

    def probability(text: str) -> float:
        ids = tokenizer.encode(text, length)
        # The network was trained with padding that its attention sees.
        padding = [0] * (length - len(ids))
        tokens = torch.tensor([ids + [tokenizer.pad_token_id for _ in padding]])
        mask = torch.tensor([[1] * len(ids) + padding])
        with torch.inference_mode():  # holds for one thread
            return network(tokens, mask).softmax(-1)[0, 1].item()

    def score(texts: Sequence[str]) -> np.ndarray:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # several wait for each other on small products
        try:
            # Batches are slower, and a score's last bits would depend on the batch.
            with ThreadPoolExecutor(before) as pool:
                return np.array(list(pool.map(probability, texts)))
        finally:
            torch.set_num_threads(before)

    return score


def _prompt_guardrail(files: Mapping[str, Path]) -> _TextScorer:
    from scipy.special import expit
    from sklearn.feature_extraction.text import TfidfVectorizer

    read = _read_pickle(
        files["ig_ip_vectorizer.pkl"], "TfidfVectorizer", "TfidfTransformer"
    )
    kept = (
        "strip_accents",
        "lowercase",
        "token_pattern",
        "ngram_range",
        "norm",
        "smooth_idf",
        "sublinear_tf",
    )
    vectorizer = TfidfVectorizer(
        **{name: read[name] for name in kept}, vocabulary=read["vocabulary_"]
    )
    vectorizer.idf_ = vars(read["_tfidf"])["idf_"]
    linear = _read_pickle(files["lg_ip_guardrails.pkl"], "LogisticRegression")
    return lambda texts: expit(
        vectorizer.transform(texts) @ linear["coef_"][0] + linear["intercept_"][0]
    )


_PACKAGES: dict[
    str, Callable[[Mapping[str, Path]], _TextScorer]
] = {  # from located files to a scorer, by distribution
    "alt-profanity-check": _alt_profanity_check,
    "better-profanity": _better_profanity,
    "hatesonar": _hatesonar,
    "metatronnanoguard": _metatronnanoguard,
    "prompt-guardrail": _prompt_guardrail,
}
