"""Complete the traces of a server that returned a part.

The method explains how (`docs/method.md`, Black-box proxies).
"""

from paraguard_lab.analysis import surrogate
from paraguard_utils.errors import Missing
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.models.trace_store import read_traces
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import RECORDED, CorpusFiles, Store, read_meta


def complete(
    files: CorpusFiles, system: str, prompts: Corpus, traces: Traces
) -> tuple[Traces, str]:
    """Complete a served system's traces by those of a surrogate, here or in the record.

    Returns the traces in their order, and the model whose tokens they hold. `Missing`
    says that no surrogate was queried with the corpus under the same system prompt.
    """
    level = read_meta(files.path("traces", system))["level"]
    for place in (files, CorpusFiles(Store(RECORDED), files.name)):
        folder = place.path("traces", "any").parent
        known = {file.stem for file in folder.glob("*.parquet")}
        name = surrogate.find_surrogate(system, known)
        if name is not None:
            substitute = read_traces(place, name, prompts)
            filled = surrogate.fill_from_surrogate(traces, level, substitute)
            completed = surrogate.retokenize(filled, substitute)
            return completed, model_of_system(name)
    raise Missing(
        f"{system} tells {level!r} only, and no packaged model that could lend the rest"
        f" was asked {files.name}; run 02_querying with --store {files.store.name}, the"
        " same corpus and system prompt, and model=smollm2-135m-instruct"
    )
