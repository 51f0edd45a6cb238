"""Find what answers for a model's name, and say what such a backend does.

Local weights answer here. Other packages add servers, clusters or files of requests:
their modules are entry points of the group `paraguard.backends`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paraguard_utils import registry, seams
from paraguard_utils.models import loading, local
from paraguard_utils.models.prompting import Decoding, PromptContext, Workload
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import QueryOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Backend(Protocol):
    """What answers prompts: loaded weights, a server, a cluster, a folder of files."""

    @property
    def name(self) -> str:
        """The beginning of system names."""

    @property
    def argument(self) -> str:
        """The parameter `model` that named it."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase | None":
        """What knows the control tokens that no prompt may contain; None if unknown."""

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Yield the traces of a workload, some prompts at a time."""

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""


class BackendSource(Protocol):
    """A backend that was found and not opened yet."""

    @property
    def name(self) -> str:
        """The beginning of system names."""

    @property
    def weights_id(self) -> str:
        """What identifies the weights, as part of keys."""

    @property
    def argument(self) -> str:
        """The parameter `model` that named it."""

    def open(self, options: QueryOptions) -> Backend:
        """Load the weights or connect; raise `ModelError` if that cannot be."""


class BackendKind(Protocol):
    """A module of the group `paraguard.backends`."""

    def takes(self, options: QueryOptions) -> bool:
        """Return whether these parameters ask for this kind of backend."""

    def resolve(self, options: QueryOptions) -> list[BackendSource]:
        """Find the models that the parameters name, without loading anything."""


@dataclass(frozen=True)
class LocalSource(loading.ModelSource):
    """A model whose weights are on this machine."""

    dtype: str

    def open(self, options: QueryOptions) -> local.WeightsBackend:
        """Load the weights onto the device."""
        return local.LocalBackend(self.load(options))

    def load(self, options: QueryOptions) -> loading.LoadedModel:
        """Return the model on the device."""
        loading.check_device(options.device)
        return loading.load_model(
            self, self.dtype, options.device, options.without_template
        )


def resolve_models(options: QueryOptions) -> list[loading.ModelSource]:
    """Find the weights of the user's model, or of the default ones."""
    names = [options.model] if options.model else registry.list_default_models()
    return [loading.resolve_model(name) for name in names]


def resolve_backends(options: QueryOptions) -> list[BackendSource]:
    """Find the user's model, or the default ones, without loading anything.

    The first kind of backend that takes the parameters finds them, and else they are
    local weights. An unknown name raises `ModelError`.
    """
    for name in seams.find_extensions("backends"):
        kind: BackendKind = seams.load_extension("backends", name)
        if kind.takes(options):
            return kind.resolve(options)
    sources = resolve_models(options)
    return [LocalSource(**vars(source), dtype=options.dtype) for source in sources]
