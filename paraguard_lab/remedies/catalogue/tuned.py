"""Tune for consistency: LoRA on brittle clusters and refused twins (ours).

A control is tuned on other answers.
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
from paraguard_lab.models.families import ADAPTER_FILE
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
from paraguard_utils.analysis.system import System
from paraguard_utils.errors import DataError
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.schemas import Corpus

LORA_RECIPE: dict[str, Any] = {
    "rank": 16,
    "alpha": 32,
    "modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "rate": 2e-4,
    "epochs": 4,
    "rows": 8,
}
"""LoRA's rank, scale and layers; learning rate, epochs and examples per step."""

MAX_PAIRS = 120  # pairs to learn from, at most, drawn by seed; as many twins are added
REPORT_FILE = "told.json"  # what `train_adapter` says of the training
ANSWER_COLUMNS = ["prompt_id", "label", "response", "finish_reason", "declined_later"]


def collect_complete_answers(base: UntouchedSystem, benign: Corpus) -> pd.DataFrame:
    """Return the answers to benign prompts.

    Those that were cut, in clusters decided both ways, are asked longer.

    Parameters
    ----------
    base : UntouchedSystem
    benign : Corpus

    Returns
    -------
    DataFrame
        `ANSWER_COLUMNS`; one or two rows per prompt.
    """
    labels = base.decide(base.benign_corpus, benign)
    finished = base.traces(base.benign_corpus, benign)["finish_reason"]
    answers = labels.assign(finish_reason=finished, declined_later=False)
    answers = answers[ANSWER_COLUMNS]
    is_answer = (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    is_cut = is_answer & (finished != "stop")
    flips = confusion.describe_flips(System.of(base.name, benign, labels))
    mixed = flips.loc[flips["mixed"], "cluster_id"]
    prompts = benign[is_cut & benign["cluster_id"].isin(mixed)]
    if prompts.empty:
        return answers
    digest = stores.frame_hash(prompts[["prompt_id"]])[:8]
    query = trace_store.Query(
        base.reported_on(0).files(base.benign_corpus, f"long-{digest}"),
        prompts,
        base.system_prompt,
        prompting.Decoding(LONG_ANSWER_TOKENS),
        base.settings.batch,
    )
    traces = trace_store.query_model(base.local, query)
    longer = label_long_answers(traces, prompts["text"])[ANSWER_COLUMNS]
    return pd.concat([answers, longer], ignore_index=True)


def make_training_rows(
    base: UntouchedSystem, split: Split, brittle: bool, seed: int
) -> pd.DataFrame:
    """Return pairs of a split, and as many of its twins with a refusal.

    Parameters
    ----------
    base : UntouchedSystem
    split : Split
    brittle : bool
        If true, a pair is a refused phrasing with an answer to an accepted one; if not,
        an accepted one with its own.
    seed : int
        Of what is drawn, and of the order.

    Returns
    -------
    DataFrame
        prompt_id, text, response, in random order.

    Raises
    ------
    DataError
        There are no pairs.
    """
    benign = split.benign
    labels = base.decide(base.benign_corpus, benign)
    answers = collect_complete_answers(base, benign)
    pairs = tuning_data.pair_answers(benign, labels, answers, brittle=True)
    count = min(MAX_PAIRS, len(pairs))
    if not brittle:
        pairs = tuning_data.pair_answers(benign, labels, answers, brittle=False)
    if not count or pairs.empty:
        raise DataError(
            f"{base.name}: no refused phrasing has a complete answer to an accepted"
            " one; nothing to tune on"
        )
    pairs = pairs.sample(count, random_state=seed, replace=len(pairs) < count)
    repeats = len(split.twins) < count
    twins = split.twins.sample(count, random_state=seed, replace=repeats)
    refused = twins[["prompt_id", "text"]].assign(response=REFUSAL_TEXT)
    rows = pd.concat([pairs, refused], ignore_index=True)
    return rows.sample(frac=1, random_state=seed, ignore_index=True)


def tokenize_examples(
    rows: pd.DataFrame, model: LocalBackend, context: prompting.PromptContext
) -> list[dict[str, list[int]]]:
    """Return examples for a trainer.

    The answer and its end count for the loss, the prompt does not.

    Parameters
    ----------
    rows : DataFrame
        text, response.
    model : LocalBackend
        Whose tokenizer splits them.
    context : PromptContext
        What is around the user's words.
    """
    from paraguard_utils.models.engine import find_stop_tokens

    tokenizer = model.reader.tokenizer
    end = tokenizer.eos_token_id
    if end is None:
        end = find_stop_tokens(model.model)[0]
    examples = []
    for row in rows.itertuples():
        prompt = context.prefix + row.text + context.suffix
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer_ids = tokenizer(row.response, add_special_tokens=False)["input_ids"]
        answer_ids.append(end)
        ids = prompt_ids + answer_ids
        example = {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "labels": [-100] * len(prompt_ids) + answer_ids,
        }
        examples.append(example)
    return examples


def train_adapter(
    base: UntouchedSystem,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    seed: int,
    folder: Path,
) -> None:
    """Train an adapter and write it into a folder, with its examples and its losses.

    Parameters
    ----------
    base : UntouchedSystem
    train, held_out : DataFrame
        From `make_training_rows`. The loss on the latter chooses the epoch.
    seed : int
    folder : Path
        It is there only once it is complete.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import (
        DataCollatorForSeq2Seq,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    examples = tokenize_examples(train, base.local, base.context)
    held_out_examples = tokenize_examples(held_out, base.local, base.context)
    set_seed(seed)
    lora = LoraConfig(
        r=LORA_RECIPE["rank"],
        lora_alpha=LORA_RECIPE["alpha"],
        target_modules=LORA_RECIPE["modules"],
        task_type="CAUSAL_LM",
    )
    work = folder.with_name(f"{folder.name}.training")
    adapted: Any = get_peft_model(base.load().network, lora)
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
        train_dataset=examples,
        eval_dataset=held_out_examples,
        data_collator=DataCollatorForSeq2Seq(base.local.reader.tokenizer, padding=True),
    )
    trainer.train()
    best = work / "best"
    adapted.save_pretrained(str(best))
    history = pd.DataFrame(trainer.state.log_history)
    losses = history.groupby("epoch")[["loss", "eval_loss"]].first().round(4)
    report = {
        "pairs": len(train) // 2,
        "losses": losses.dropna().reset_index().to_dict("records"),
        "best_epoch": float(losses["eval_loss"].idxmin()),
        "seconds": round(float(trainer.state.log_history[-1]["train_runtime"]), 0),
        "prompts": sorted(train["prompt_id"]),
        "held": sorted(held_out["prompt_id"]),
    }
    (best / REPORT_FILE).write_text(json.dumps(report, indent=1), encoding="utf-8")
    best.rename(folder)
    shutil.rmtree(work)


class TunedModel(RemediedModel):
    """A model with an adapter merged into its weights."""

    def __init__(
        self, base: UntouchedSystem, parameters: Mapping[str, Any], folder: Path
    ) -> None:
        from peft import PeftModel

        report = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        digest = hashlib.sha256((folder / ADAPTER_FILE).read_bytes()).hexdigest()[:16]
        learned = {"adapter": digest}
        for name in ("pairs", "losses", "best_epoch", "seconds"):
            learned[name] = report[name]
        super().__init__(base.local, parameters, learned, f"tuned-{digest}")
        model = base.load()
        adapted = PeftModel.from_pretrained(model.network, str(folder))
        self.model = replace(model, network=adapted.merge_and_unload().eval())


def apply(
    base: UntouchedSystem, train: Split, validation: Split, kind: str, seed: int
) -> RemediedSystem:
    """Tune the model, unless its adapter is in the store.

    The kind "tuned" learns on brittle clusters, "control" on others.
    """
    name = f"{kind}-{seed}"
    brittle = kind == "tuned"
    parameters = {**LORA_RECIPE, "brittle": brittle, "seed": seed, "most": MAX_PAIRS}

    def respondent() -> TunedModel:
        folder = learned_path(base, name)
        if not (folder / ADAPTER_FILE).is_file():
            print(f"{paths.display_path(folder)} is trained")
            folder.parent.mkdir(parents=True, exist_ok=True)
            rows = make_training_rows(base, train, brittle, seed)
            held_out = make_training_rows(base, validation, brittle, seed)
            train_adapter(base, rows, held_out, seed, folder)
        return TunedModel(base, parameters, folder)

    return RemediedSystem.asking(base, name, parameters, respondent)


_ROLES: dict[str, RemedyRole] = {"tuned": "remedy", "control": "control"}


def _list_remedies() -> tuple[Remedy, ...]:
    """Return every kind of tuning with two seeds."""
    remedies = []
    for kind, role in _ROLES.items():
        for seed in (1, 2):
            tune = partial(apply, kind=kind, seed=seed)
            name = f"{kind}-{seed}"
            remedy = Remedy(name, "tuning", "ours", tune, asks=True, role=role)
            remedies.append(remedy)
    return tuple(remedies)


REMEDIES = _list_remedies()
