"""Local guards that answer in words: their prompts, and the tokens of their labels.

A text is data: a control token's string inside it is made plain text
(`control_strings.defuse_control_strings`). If a text imitates a prompt's plain words,
such as the line that ends a conversation, no tokenizer can tell them from its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paraguard_lab.core import control_strings
from paraguard_tools.guards.formats import DeployedEntry, read_verdict, render_turns
from paraguard_tools.guards.notes import GuardNotes
from paraguard_tools.guards.text_classifier import count_positions
from paraguard_utils.errors import ModelError
from paraguard_utils.models import loading, prompting


class PromptedGuard:
    """Scores requests by the words that a model writes about them.

    Parameters
    ----------
    name : str
        The guard's name, for errors.
    entry : DeployedEntry
        What the model reads, and how its output is read.
    model : LoadedModel
        The weights and their tokenizer.
    batch : int
        Prompts per batch.
    notes : GuardNotes
        Where cut texts and the labels' share of the next token are noted.

    Raises
    ------
    ModelError
        If a label is not one token.
    """

    def __init__(
        self,
        name: str,
        entry: DeployedEntry,
        model: loading.LoadedModel,
        batch: int,
        notes: GuardNotes,
    ) -> None:
        assert entry.tokens is not None  # `DeployedEntry` requires them
        self.name = name
        self.entry = entry
        self.model = model
        self.batch = batch
        self.notes = notes
        if model.tokenizer.pad_token is None:
            model.tokenizer.pad_token = model.tokenizer.eos_token
        self.room = count_positions(model.network, model.tokenizer)
        if entry.kind != "first_token":
            self.room -= entry.max_new_tokens
        # A request that stands for any
        frame = self.prompt("x", entry.runs[0])
        self.controls = control_strings.find_control_strings(model.tokenizer, frame)
        before = frame + entry.before
        self.unsafe = [self._find_token(before, label) for label in entry.tokens.unsafe]
        self.safe = [self._find_token(before, label) for label in entry.tokens.safe]

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return one probability per text, the greatest of its runs.

        NaN if an output cannot be read.
        """
        by_run = []
        for run in self.entry.runs:
            prompts = [self._fit_prompt(text, run) for text in texts]
            scores, masses = self._score_prompts(prompts)
            by_run.append(scores)
            for text, mass in zip(texts, masses, strict=True):
                self.notes.note_mass(text, mass)
        return np.max(by_run, axis=0)

    def prompt(self, text: str, run: Mapping[str, Any]) -> str:
        """Return what the model reads for one text, up to where its own words begin."""
        turns = render_turns(self.entry, text)
        rendered = prompting.render_chat(
            self.model.tokenizer,
            turns,
            self.entry.template,
            **{**self.entry.arguments, **run},
        )
        if rendered.endswith(self.entry.forced):
            return rendered
        return rendered + self.entry.forced

    def _fit_prompt(self, request: str, run: Mapping[str, Any]) -> str:
        """Return a prompt that the model can hold.

        A longer request loses its end, which is noted.
        """
        text = control_strings.defuse_control_strings(request, self.controls)
        while True:
            prompt = self.prompt(text, run)
            excess = len(self._tokenize(prompt)["input_ids"]) - self.room
            if excess <= 0:
                return prompt
            self.notes.cut.add(request)
            text = self._shorten(text, excess)

    def _tokenize(self, text: str) -> Any:
        return self.model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )

    def _shorten(self, text: str, n_tokens: int) -> str:
        """Return a text without its last tokens, but with at least one."""
        ends = [end for _, end in self._tokenize(text)["offset_mapping"]]
        if len(ends) < 2:
            raise ModelError(
                f"the guard {self.name}: {self.model.name} cannot hold its instruction"
                " alone"
            )
        n_kept = max(len(ends) - n_tokens, 1)
        return text[: ends[n_kept - 1]]

    def _find_token(self, before: str, label: str) -> int:
        """Return the one token that a label is after what precedes it in a prompt."""
        encoded = self._tokenize(before + label)
        # It does not matter how the text before is tokenized, but no token of it may
        # reach into the label.
        offsets = np.array(encoded["offset_mapping"])
        (places,) = np.nonzero(offsets[:, 1] > len(before))
        if len(places) == 1 and offsets[places[0], 0] >= len(before):
            token = int(encoded["input_ids"][places[0]])
            if str(self.model.tokenizer.decode([token])).strip() == label.strip():
                return token
        raise ModelError(
            f"the guard {self.name}: {label!r} is not one token of the tokenizer of"
            f" {self.model.name} behind {before[-12:]!r}; name its first token under"
            " `tokens` in an entry of your own, or load the weights that the entry is"
            " for"
        )

    def _score_prompts(self, prompts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities of unsafe, and the labels' share of the next token's.

        Both are NaN if an output cannot be read.
        """
        sides = np.full((len(prompts), 2), np.nan)
        if self.entry.kind == "first_token":
            sides[:] = self._label_probabilities(prompts)
        else:
            places = []
            up_to_label = []
            for place, output in enumerate(self._generate(prompts)):
                verdict = read_verdict(self.entry, output)
                if verdict:
                    places.append(place)
                    up_to_label.append(prompts[place] + verdict.written)
            sides[places] = self._label_probabilities(up_to_label)
        masses = sides.sum(axis=1)
        scores = sides[:, 0] / np.where(masses > 0, masses, np.nan)
        return np.where(masses >= self.entry.least, scores, np.nan), masses

    def _label_probabilities(self, prompts: list[str]) -> np.ndarray:
        """Return the next token's probabilities, shape (n_prompts, 2).

        The columns are those of an unsafe label and of a safe one.
        """
        import torch

        network = self.model.network
        batches = [np.empty((0, 2))]
        with torch.inference_mode():
            for start in range(0, len(prompts), self.batch):
                inputs = self.model.tokenizer(
                    prompts[start : start + self.batch],
                    add_special_tokens=False,
                    padding=True,
                    padding_side="left",
                    return_tensors="pt",
                ).to(network.device)
                mask = inputs["attention_mask"]
                output = network(
                    input_ids=inputs["input_ids"],
                    attention_mask=mask,
                    position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                    use_cache=False,
                    logits_to_keep=1,
                )
                next_token = output.logits[:, -1].double().softmax(-1)
                sides = [next_token[:, own].sum(1) for own in (self.unsafe, self.safe)]
                batches.append(torch.stack(sides, 1).cpu().numpy())
        return np.concatenate(batches)

    def _generate(self, prompts: list[str]) -> list[str]:
        """Return what the model writes by greedy decoding, with its control tokens."""
        if not prompts:
            return []
        from paraguard_lab.core.batches import ask_in_batches

        encoded = self.model.tokenizer(prompts, add_special_tokens=False)
        requests = [
            prompting.Request(str(number), "", tuple(ids), len(ids) - 1, len(ids))
            for number, ids in enumerate(encoded["input_ids"])
        ]
        rows = ask_in_batches(
            self.model, requests, self.batch, self.entry.max_new_tokens, raw=True
        )
        return [row["response"] for row in rows]
