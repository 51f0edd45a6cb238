"""Tune for consistency: LoRA on brittle clusters and refused twins, and on other
answers as a control (ours).
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_lab.labels.follow_ups import LONG_ANSWER_TOKENS, label_long_answers
from paraguard_lab.remedies import tuning_data
from paraguard_lab.remedies.asking import RemediedModel
from paraguard_lab.remedies.catalogue.demonstrations import REFUSAL_TEXT
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    RemedyRole,
    Split,
    UntouchedSystem,
)
from paraguard_lab.remedies.inside import learned_path
from paraguard_utils import paths, stores
from paraguard_utils.analysis import confusion
from paraguard_utils.errors import DataError
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.schemas import Corpus
from paraguard_utils.settings import name_remedied

LORA_RECIPE: dict[str, Any] = {
    "rank": 16,
    "alpha": 32,
    "modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "rate": 2e-4,
    "epochs": 4,
    "rows": 8,
}
"""LoRA's rank, scale and layers; learning rate, epochs and examples a step."""

MAX_PAIRS = 120  # pairs to learn from, at most, drawn by seed; as many twins are added
ADAPTER_FILE = "adapter_model.safetensors"


def collect_complete_answers(base: UntouchedSystem, benign: Corpus) -> pd.DataFrame:
    """Return the answers to benign prompts.

    Those that were cut in clusters decided both ways are asked longer.
    """
    of = next(iter(base.corpora))
    own = base.decide(of, benign)
    finished = base.traces(of, benign)["finish_reason"].to_numpy()
    columns = ["prompt_id", "label", "response", "finish_reason", "declined_later"]
    usual = own.assign(finish_reason=finished, declined_later=False)[columns]
    cut = (
        (own["label"] == "accept")
        & (own["answer"] == "on_topic")
        & (finished != "stop")
    )
    brittle = benign["cluster_id"].isin(
        confusion.describe_flips(benign, own).query("mixed")["cluster_id"]
    )
    prompts = benign[cut.to_numpy() & brittle.to_numpy()]
    if prompts.empty:
        return usual
    name = name_remedied(of, f"long-{stores.frame_hash(prompts[['prompt_id']])[:8]}")
    how = (
        base.local,
        base.system_prompt,
        prompting.Decoding(LONG_ANSWER_TOKENS),
        base.settings.batch,
    )
    longer = trace_store.query_model(base.store, name, prompts, *how)
    return pd.concat(
        [usual, label_long_answers(longer, prompts["text"])[columns]], ignore_index=True
    )


def make_training_rows(
    base: UntouchedSystem, split: Split, brittle: bool, seed: int
) -> pd.DataFrame:
    """Return pairs of a split, and as many of its twins with a refusal, in random
    order: prompt_id, text, response.

    A pair is a refused phrasing with an answer to an accepted one if `brittle`, else an
    accepted one with its own. Raises DataError if there are none.
    """
    benign, of = split.benign, next(iter(base.corpora))
    given = (benign, base.decide(of, benign), collect_complete_answers(base, benign))
    pairs = tuning_data.pair_answers(*given, brittle=True)
    count = min(MAX_PAIRS, len(pairs))
    if not brittle:
        pairs = tuning_data.pair_answers(*given, brittle=False)
    if not count or pairs.empty:
        raise DataError(
            f"{base.name}: no refused phrasing has a complete answer to an accepted"
            " one; nothing to tune on"
        )
    pairs = pairs.sample(count, random_state=seed, replace=len(pairs) < count)
    twins = split.twins.sample(
        count, random_state=seed, replace=len(split.twins) < count
    )
    refused = twins[["prompt_id", "text"]].assign(response=REFUSAL_TEXT)
    return pd.concat([pairs, refused], ignore_index=True).sample(
        frac=1, random_state=seed, ignore_index=True
    )


def tokenize_examples(
    rows: pd.DataFrame, model: LocalBackend, context: prompting.PromptContext
) -> list[dict[str, list[int]]]:
    """Return examples for a trainer.

    The answer and its end count for the loss, the prompt does not.
    """
    from paraguard_utils.models.engine import find_stop_tokens

    tokenizer, made = model.reader.tokenizer, []
    end = (
        tokenizer.eos_token_id
        if tokenizer.eos_token_id is not None
        else find_stop_tokens(model.model)[0]
    )
    for row in rows.itertuples():
        asked = tokenizer(
            context.prefix + row.text + context.suffix, add_special_tokens=False
        )["input_ids"]
        told = [*tokenizer(row.response, add_special_tokens=False)["input_ids"], end]
        ids = [*asked, *told]
        made.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "labels": [-100] * len(asked) + told,
            }
        )
    return made


def train_adapter(
    base: UntouchedSystem,
    train: Split,
    validation: Split,
    brittle: bool,
    seed: int,
    folder: Path,
) -> None:
    """Train an adapter and write it, with its examples and its losses."""
    from peft import LoraConfig, get_peft_model
    from transformers import (
        DataCollatorForSeq2Seq,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    learned, held = (
        make_training_rows(base, split, brittle, seed) for split in (train, validation)
    )
    sets = [
        tokenize_examples(rows, base.local, base.context) for rows in (learned, held)
    ]
    set_seed(seed)
    rank, alpha, modules = (LORA_RECIPE[name] for name in ("rank", "alpha", "modules"))
    lora = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=modules, task_type="CAUSAL_LM"
    )
    work = folder.with_name(f"{folder.name}.training")
    adapted: Any = get_peft_model(base.load(packed=False).network, lora)
    trainer = Trainer(
        adapted,
        TrainingArguments(
            str(work),
            num_train_epochs=LORA_RECIPE["epochs"],
            per_device_train_batch_size=LORA_RECIPE["rows"],
            per_device_eval_batch_size=LORA_RECIPE["rows"],
            learning_rate=LORA_RECIPE["rate"],
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            use_cpu=base.settings.device == "cpu",
            seed=seed,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=sets[0],
        eval_dataset=sets[1],
        data_collator=DataCollatorForSeq2Seq(base.local.reader.tokenizer, padding=True),
    )
    trainer.train()
    adapted.save_pretrained(str(work / "best"))
    losses = (
        pd.DataFrame(trainer.state.log_history)
        .groupby("epoch")[["loss", "eval_loss"]]
        .first()
        .round(4)
    )
    told = {
        "pairs": len(learned) // 2,
        "losses": losses.dropna().reset_index().to_dict("records"),
        "best_epoch": float(losses["eval_loss"].idxmin()),
        "seconds": round(float(trainer.state.log_history[-1]["train_runtime"]), 0),
        "prompts": sorted(learned["prompt_id"]),
        "held": sorted(held["prompt_id"]),
    }
    (work / "best" / "told.json").write_text(
        json.dumps(told, indent=1), encoding="utf-8"
    )
    (work / "best").rename(folder)
    shutil.rmtree(work)


class TunedModel(RemediedModel):
    """A model with an adapter merged into its weights."""

    def __init__(
        self, base: UntouchedSystem, parameters: Mapping[str, Any], folder: Path
    ) -> None:
        from peft import PeftModel

        from paraguard_utils.models.cpu import pack_linear_layers

        told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
        digest = hashlib.sha256((folder / ADAPTER_FILE).read_bytes()).hexdigest()[:16]
        learned = {
            "adapter": digest,
            **{
                name: told[name]
                for name in ("pairs", "losses", "best_epoch", "seconds")
            },
        }
        super().__init__(base.local, parameters, learned, f"tuned-{digest}")
        model = base.load(packed=False)
        network = (
            PeftModel.from_pretrained(model.network, str(folder))
            .merge_and_unload()
            .eval()
        )
        pack_linear_layers(network)
        self.model = replace(model, network=network)


def apply(
    base: UntouchedSystem, train: Split, validation: Split, kind: str, seed: int
) -> RemediedSystem:
    """Tune the model on brittle clusters, or as a control, unless its adapter is in the
    store.
    """
    name, brittle = f"{kind}-{seed}", kind == "tuned"
    parameters = {**LORA_RECIPE, "brittle": brittle, "seed": seed, "most": MAX_PAIRS}

    def respondent() -> TunedModel:
        folder = learned_path(base, name)
        if not (folder / ADAPTER_FILE).is_file():
            print(f"{paths.display_path(folder)} is trained")
            folder.parent.mkdir(parents=True, exist_ok=True)
            train_adapter(base, train, validation, brittle, seed, folder)
        return TunedModel(base, parameters, folder)

    return RemediedSystem.asking(base, name, parameters, respondent)


_ROLES: dict[str, RemedyRole] = {"tuned": "remedy", "control": "control"}

REMEDIES = tuple(
    Remedy(
        f"{kind}-{seed}",
        "tuning",
        "ours",
        partial(apply, kind=kind, seed=seed),
        asks=True,
        role=role,
    )
    for kind, role in _ROLES.items()
    for seed in (1, 2)
)
