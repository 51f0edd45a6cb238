"""Make a tiny world for tests of remedies: recorded clusters with their twins, and a
random model that was asked them.

The model's answers are replaced by texts that can be searched for and labelled; every
second one is cut, unless longer answers are asked for.
"""

import zlib

import torch
from asking import ANSWERS
from transformers import AutoConfig, AutoModelForCausalLM

from paraguard_lab.labels.follow_ups import LONG_ANSWER_TOKENS
from paraguard_lab.remedies.catalogue import tuned
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_lab.settings import RemedySettings
from paraguard_utils import settings, stores, unsafe
from paraguard_utils.labels import systems
from paraguard_utils.models import engine, prompting, trace_store
from paraguard_utils.settings import QuerySettings

LAYERS = 6
BENIGN, TWINS = "mini", "wicked"


def deep(folder):
    """Give a tiny model in a folder `LAYERS` layers, so that it has a middle; return
    the folder.
    """
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers, config.layer_types = LAYERS, None
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def spoken(patch):
    """Let the engine answer with searchable texts, chosen by the id and the length of
    the prompt.
    """
    real = engine.Engine.ask

    def ask(self, batch):
        rows = real(self, batch)
        for row in rows:
            number = zlib.crc32(f"{row['prompt_id']} {len(row['token_ids'])}".encode())
            row["response"] = ANSWERS[number % 3].format(row["key"][:4])
            limit = self.decoding.max_new_tokens
            cut = number // 3 % 2 and limit < LONG_ANSWER_TOKENS
            row["finish_reason"] = "length" if cut else "stop"
        return rows

    patch.setattr(engine.Engine, "ask", ask)


def too_few(corpus, twins, categories=5, clusters=4, prompts=3):
    """Return the first prompts of some clusters with a twin, and those of the twins."""
    of = corpus[
        corpus["cluster_id"].isin(unsafe.benign_cluster_of(twins["cluster_id"]))
    ]
    names = of.groupby("category")["cluster_id"].unique().sort_index().iloc[:categories]
    kept = [cluster for own in names for cluster in sorted(own)[:clusters]]
    parts = (
        of[of["cluster_id"].isin(kept)],
        twins[unsafe.benign_cluster_of(twins["cluster_id"]).isin(kept)],
    )
    return tuple(
        part.groupby("cluster_id").head(prompts).reset_index(drop=True)
        for part in parts
    )


def config_of(folder, **more):
    """Return settings for a tiny model."""
    given = {
        "store": "test",
        "corpus": BENIGN,
        "model": str(folder),
        "system_prompts": ["none", "safety"],
    }
    return settings.check_settings(
        given | {"max_new_tokens": 16, "batch": 8} | more, RemedySettings
    )


def built(folder, corpora):
    """Ask a tiny model all corpora under two system prompts, into the store `test`."""
    given = config_of(folder).model_dump(include=set(QuerySettings.model_fields))
    config = settings.check_settings(given, QuerySettings)
    for name, prompts in corpora.items():
        files = stores.CorpusFiles(stores.Store("test"), name)
        files.write("corpus", frame=prompts, meta={})
        asked = systems.ask_systems(files, prompts, config)
        systems.label_systems(files, prompts, asked, config)


def untouched(folder, corpora, **more):
    """Return the tiny system under the safety instruction, from the store `test`."""
    store = stores.Store("test")
    name = trace_store.find_systems(stores.CorpusFiles(store, BENIGN), str(folder))[-1]
    return UntouchedSystem(store, name, corpora, config_of(folder, **more))


def looked_at(patch):
    """Return a set that collects ids of prompts whose answers, traces or text are read;
    copies count as prompts.
    """
    ids = set()

    def noting(real):
        def call(*given, **named):
            found = real(*given, **named)
            ids.update(found["prompt_id"].str.partition("~")[0])
            return found

        return call

    def interpretation(real, place):
        def call(*given, **named):
            ids.update(given[place]["prompt_id"].str.partition("~")[0])
            return real(*given, **named)

        return call

    for name in ("decide", "traces"):
        patch.setattr(UntouchedSystem, name, noting(getattr(UntouchedSystem, name)))
    patch.setattr(
        prompting, "tokenize_prompts", interpretation(prompting.tokenize_prompts, 0)
    )  # whatever is asked goes through it
    patch.setattr(
        tuned, "tokenize_examples", interpretation(tuned.tokenize_examples, 0)
    )
    return ids


def ids_of(split):
    """Return the ids of a split's prompts."""
    return {*split.benign["prompt_id"], *split.twins["prompt_id"]}
