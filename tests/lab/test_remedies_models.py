"""Test remedies that ask a model: changes are undone, splits are kept to, and no answer
to a twin is on disk.
"""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import remedied
import tiny
import torch
from asking import Killed, ask, dies, texts_in
from remedied import BENIGN, TWINS, ids_of
from test_live import has_model

from paraguard_lab.corpus.xstest import XSTEST_SAFE
from paraguard_lab.guards import refusal
from paraguard_lab.labels.withheld import LabelledParts, keep_labels
from paraguard_lab.remedies import catalogue, decisions, inside, splits
from paraguard_lab.remedies.catalogue import self_cd, tuned
from paraguard_lab.remedies.catalogue.ablated import AblatedModel, Ablation
from paraguard_lab.remedies.catalogue.steered import SteeredModel, Steering
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import paths, registry, stores
from paraguard_utils.labels import labelling
from paraguard_utils.models import engine, loading, prompting, trace_store
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.parts import Parts

IDS = [[5, 9, 40, 77, 8, 120], [3, 3, 60, 61, 62, 7]]
CLEAR = 1e-3
"""A lead in log-probability that no rounding overturns."""


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory):
    """A tiny chat model with a middle, in a folder."""
    return remedied.deep(tiny.write(tmp_path_factory.mktemp("models") / "Tiny Deep"))


@pytest.fixture(scope="module")
def model(deep_folder):
    return loading.load_model(loading.resolve_model(str(deep_folder)))


def text_of(system_prompt):
    return registry.system_prompts()[system_prompt]["text"]


def logits(network):
    with torch.inference_mode():
        return network(input_ids=torch.tensor(IDS)).logits


def hooks(network):
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in network.modules()
    )


def width(network):
    return network.config.hidden_size


def ablation(network, strength=1.0):
    direction = np.random.default_rng(0).normal(size=width(network))
    return Ablation(direction / np.linalg.norm(direction), 2, strength)


def steering(network, multiplier=0.2):
    vectors = np.random.default_rng(1).normal(
        size=(len(inside.decoder_layers(network)), width(network))
    )
    return Steering(vectors, vectors, 2, 4, 0.0, multiplier)


# What is changed is taken back

WAYS = {
    "changed": lambda network: inside.change_layers(
        network, {1: lambda output: output + 1}
    ),
    "ablated": lambda network: ablation(network).on(network),
    "towards": lambda network: steering(network).on(network, 1),
    "away": lambda network: steering(network).on(network, -1),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_changed_model_is_itself_again_bit_for_bit(model, way):
    network = model.network
    before, hooked = logits(network), hooks(network)
    with WAYS[way](network):
        assert not torch.equal(logits(network), before) and hooks(network) > hooked
    assert torch.equal(logits(network), before) and hooks(network) == hooked
    with pytest.raises(ZeroDivisionError), WAYS[way](network):
        logits(network)
        raise ZeroDivisionError
    assert torch.equal(logits(network), before) and hooks(network) == hooked


def test_a_change_that_fails_is_taken_back_too(model):
    def fails(output):
        raise ZeroDivisionError

    before, hooked = logits(model.network), hooks(model.network)
    with (
        pytest.raises(ZeroDivisionError),
        inside.change_layers(model.network, {0: lambda output: output * 2, 3: fails}),
    ):
        logits(model.network)
    assert torch.equal(logits(model.network), before) and hooks(model.network) == hooked


def test_no_strength_changes_nothing(model):
    before = logits(model.network)
    for nothing in (
        ablation(model.network, 0.0).on(model.network),
        steering(model.network, 0.0).on(model.network, 1),
    ):
        with nothing:
            assert torch.equal(logits(model.network), before)


def outputs(network, around):
    """Every layer's output inside a block."""
    seen = {}

    def looking(layer):
        def look(output):
            seen[layer] = output
            return output

        return look

    with (
        around,
        inside.change_layers(
            network,
            {
                layer: looking(layer)
                for layer in range(len(inside.decoder_layers(network)))
            },
        ),
    ):
        logits(network)
    return seen


def test_ablation_leaves_nothing_of_its_direction(model):
    network = model.network
    removed, half = ablation(network), ablation(network, 0.5)
    unit = torch.tensor(removed.direction, dtype=torch.float32)
    share = {
        name: torch.stack(
            [
                (output @ unit).abs().max()
                for output in outputs(network, around).values()
            ]
        )
        for name, around in {
            "before": inside.change_layers(network, {}),
            "removed": removed.on(network),
        }.items()
    }
    assert len(share["removed"]) == remedied.LAYERS
    assert (share["removed"] < 1e-5 * share["before"].max()).all() and (
        share["before"] > 0
    ).all()
    plain, less = (
        outputs(network, inside.change_layers(network, {})),
        outputs(network, half.on(network)),
    )
    torch.testing.assert_close(
        less[0] @ unit, (plain[0] @ unit) / 2
    )  # of the first layer: later ones see the change
    across = plain[0] - (plain[0] @ unit)[..., None] * unit
    torch.testing.assert_close(less[0] - (less[0] @ unit)[..., None] * unit, across)


def test_steering_adds_to_the_middle_layers_only(model):
    network = model.network
    plain = outputs(network, inside.change_layers(network, {}))
    for sign in (1, -1):
        moved = outputs(network, steering(network).on(network, sign))
        for layer in (0, 1):
            assert torch.equal(moved[layer], plain[layer])
        added = torch.tensor(
            sign * 0.2 * steering(network).vectors[2], dtype=torch.float32
        )
        torch.testing.assert_close(moved[2], plain[2] + added)
        assert not torch.equal(moved[5], plain[5])
    with steering(network).on(network, 1):
        towards = logits(network)
    with steering(network).on(network, -1):
        assert not torch.equal(logits(network), towards)


def withheld(prompts):
    return keep_labels(prompts, numbers=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ablated", "steered"])
def test_a_run_that_dies_in_the_middle_leaves_the_model_as_it_was(
    results, model, prompts, answers, kind, monkeypatch
):
    network, local = model.network, LocalBackend(model)
    before, hooked = logits(network), hooks(network)
    made = {
        "ablated": AblatedModel(local, {}, ablation(network)),
        "steered": SteeredModel(local, {}, steering(network)),
    }[kind]
    for owner, step in ((labelling, "label_answers"), (engine.Engine, "_decode")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, lambda *_, **__: dies())
            with pytest.raises(Killed):
                ask(prompts, made, keep=withheld(prompts))
        assert torch.equal(logits(network), before) and hooks(network) == hooked
    found = ask(prompts, made, keep=withheld(prompts))
    assert set(found["label"]) <= {"accept", "reject"} and hooks(network) == hooked
    meta = stores.read_meta(
        stores.Store("test").path("labels", "mine", f"{model.name}--safety")
    )
    assert meta["weights_id"].startswith(f"{model.weights_id}+{kind}-"), (
        "keys are not the untouched model's"
    )


def test_activations_are_those_of_each_prompt_alone(model, prompts):
    local, hooked = LocalBackend(model), hooks(model.network)
    context = local.context("Be safe.", prompting.Decoding(4))
    shuffled = prompts.iloc[[4, 0, 8, 2, 6]]
    found = inside.read_activations(local, context, shuffled, 2)
    assert (
        found.shape == (5, remedied.LAYERS, width(model.network))
        and found.dtype == np.float32
    )
    assert hooks(model.network) == hooked
    for row, text in zip(found, shuffled["text"], strict=True):
        ids = model.tokenizer(
            context.prefix + text + context.suffix,
            add_special_tokens=False,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = model.network(**ids, output_hidden_states=True).hidden_states
        alone = np.stack(
            [state[0, -1].numpy() for state in states[1:-1]]
        )  # behind the last one stands a norm
        np.testing.assert_allclose(row[:-1], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_first_steps_are_those_of_traces(results, model, prompts):
    local = LocalBackend(model)
    context = local.context(text_of("safety"), prompting.Decoding(4))
    steps = inside.trace_first_steps(local, context, prompts, 4)
    traced = ask(prompts, model, tokens=4)
    assert steps["prompt_id"].tolist() == traced["prompt_id"].tolist()
    for ours, usual in zip(
        steps["next_logprobs"], traced["next_logprobs"], strict=True
    ):
        np.testing.assert_allclose(ours, usual, atol=1e-4)


# Self-CD


def by_hand(model, text, alpha, tokens):
    """Decode greedily from two whole prompts, without a cache; return the tokens and
    the least lead of any.
    """
    local, own = LocalBackend(model), []
    sides = [
        local.context(text_of(system_prompt), prompting.Decoding(tokens))
        for system_prompt in ("safety", "none")
    ]
    asked = [
        model.tokenizer(one.prefix + text + one.suffix, add_special_tokens=False)[
            "input_ids"
        ]
        for one in sides
    ]
    lead = np.inf
    for _ in range(tokens):
        with torch.inference_mode():
            y, plain = (
                torch.log_softmax(
                    model.network(input_ids=torch.tensor([ids + own])).logits[0, -1], -1
                )
                for ids in asked
            )
        top = (y - alpha * (y - plain)).topk(2)
        lead = min(lead, float(top.values[0] - top.values[1]))
        if int(top.indices[0]) in engine.find_stop_tokens(model):
            break
        own.append(int(top.indices[0]))
    return own, lead


def contrasted(model, prompts, alpha, tokens=6):
    return ask(
        prompts,
        self_cd.ContrastiveModel(
            LocalBackend(model), {}, {"alpha": alpha}, f"self-cd-{alpha}"
        ),
        tokens=tokens,
    )


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_self_cd_is_what_its_formula_says(results, model, prompts, alpha):
    found = contrasted(model, prompts, alpha)
    usual = {0.0: "safety", 1.0: "none"}.get(alpha)
    expected = [by_hand(model, text, alpha, 6) for text in prompts["text"]]
    clear = [lead > CLEAR for _, lead in expected]
    assert sum(clear) >= 6
    said = [
        str(model.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        for ids, _ in expected
    ]
    for ok, ours, text in zip(clear, found["response"], said, strict=True):
        assert not ok or ours == text
    if usual:
        files = stores.CorpusFiles(stores.Store("usual"), "mine")
        query = trace_store.Query(files, prompts, usual, prompting.Decoding(6))
        greedy = trace_store.query_model(model, query)
        assert found["response"][clear].tolist() == greedy["response"][clear].tolist()
        assert (
            refusal.first_tokens(found)[clear].tolist()
            == refusal.first_tokens(greedy)[clear].tolist()
        )


@pytest.mark.slow
def test_the_first_step_is_the_simulated_one(results, model, prompts):
    files = stores.CorpusFiles(stores.Store("usual"), "mine")
    decoding = prompting.Decoding(2)
    wrapped, plain = (
        trace_store.query_model(model, trace_store.Query(files, prompts, one, decoding))
        for one in ("safety", "none")
    )
    for alpha in (0.5, 1.0):
        clear = np.array(
            [by_hand(model, text, alpha, 1)[1] > CLEAR for text in prompts["text"]]
        )
        real, told = (
            refusal.first_tokens(contrasted(model, prompts, alpha, 2)),
            self_cd.simulate_first_tokens(wrapped, plain, alpha),
        )
        # A token that is not among the 64 likeliest of both cannot be foreseen.
        both = [
            token in set(one) & set(other)
            for token, one, other in zip(
                real, wrapped["next_ids"], plain["next_ids"], strict=True
            )
        ]
        assert (clear & both).sum() >= 3 and (real == told)[clear & both].all()


@pytest.mark.slow
def test_self_cd_takes_no_habits_of_sampling_from_a_model(
    results, model, prompts, monkeypatch
):
    """Some models' generation settings punish repetition; the usual answers know
    nothing of that.
    """
    before = contrasted(model, prompts, 2.0)
    monkeypatch.setattr(model.network.generation_config, "repetition_penalty", 9.0)
    shutil.rmtree(paths.RESULTS / "test")
    after = contrasted(model, prompts, 2.0)
    assert after["response"].tolist() == before["response"].tolist()


# A world in which all of them are asked


@pytest.fixture(scope="module")
def corpora(recorded_corpus):
    twins = stores.Store("recorded").read("corpus", "paraguard_twins_1")
    return dict(
        zip((BENIGN, TWINS), remedied.too_few(recorded_corpus, twins), strict=True)
    )


@pytest.fixture(scope="module")
def thirds(corpora):
    return splits.split_clusters(*corpora.values())


@pytest.fixture(scope="module")
def world(corpora, deep_folder, tmp_path_factory):
    """A folder of stores in which a tiny system was asked."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", folder / "results")
        remedied.spoken(patch)
        remedied.built(deep_folder, corpora)
    return folder / "results"


@pytest.fixture
def base(world, results, corpora, deep_folder, monkeypatch):
    """The tiny system in a store of its own, and what it is made to say."""
    shutil.copytree(world, results)
    remedied.spoken(monkeypatch)
    monkeypatch.setattr(
        tuned, "MAX_PAIRS", 4
    )  # pairs to tune on, and threads that wait for no busy core
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return remedied.untouched(deep_folder, corpora)


ASKING = [name for name, remedy in catalogue.all_remedies().items() if remedy.asks]
LEARN = {"self-cd", "ablated", "steered"} | {
    name for name in ASKING if name.startswith(("tuned", "control"))
}

WEEKLY = (
    "tuned-2",
    "control-1",
    "control-2",
    "demonstrations",
    "paraphrased",
    "rewritten",
)
"""Remedies that another one, tried every time, is much like, or that take longest."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.weekly if one in WEEKLY else ())
        for one in ASKING
    ],
)
def test_what_asks_a_model_never_sees_the_test_third(base, thirds, name, monkeypatch):
    seen = remedied.looked_at(monkeypatch)
    decide = (
        catalogue.all_remedies()[name]
        .apply(base, thirds.train, thirds.validation)
        .decide
    )
    assert seen == set(), "nothing is looked at before somebody asks"
    too_few = {
        of: prompts.iloc[[5, 2]]
        for of, prompts in zip((BENIGN, TWINS), thirds.test, strict=True)
    }
    given = {one for prompts in too_few.values() for one in prompts["prompt_id"]}
    for of, prompts in too_few.items():
        found = decide(of, prompts)
        assert found["prompt_id"].tolist() == prompts["prompt_id"].tolist()
        assert (
            set(found["label"]) <= {"accept", "reject", "unparsed"}
            and (found["queries"] >= 1).all()
        )
    train, validation = ids_of(thirds.train), ids_of(thirds.validation)
    assert given <= seen and seen - given <= train | validation
    for third in (train, validation) if name in LEARN else ():
        assert seen & third, "it learns, and it chooses"
    assert name in LEARN or not seen & train


@pytest.mark.slow
def test_tuning_reads_examples_of_its_own_third_only(base, thirds):
    for third, others in (
        (thirds.train, thirds.validation),
        (thirds.validation, thirds.train),
    ):
        for brittle in (True, False):
            rows = tuned.make_training_rows(base, third, brittle, seed=1)
            own = rows["prompt_id"]
            assert set(own) <= ids_of(third) and not set(own) & (
                ids_of(others) | ids_of(thirds.test)
            )
            refused = own.isin(third.twins["prompt_id"])
            assert (rows["response"] == tuned.REFUSAL_TEXT).equals(
                refused
            ) and refused.sum() * 2 == len(rows)
            decided_on = base.decide(BENIGN, third.benign).set_index("prompt_id")[
                "label"
            ]
            assert set(decided_on[own[~refused]]) == {"reject" if brittle else "accept"}
            pd.testing.assert_frame_equal(
                rows, tuned.make_training_rows(base, third, brittle, seed=1)
            )
            assert not tuned.make_training_rows(base, third, brittle, seed=2).equals(
                rows
            )


@pytest.mark.slow
def test_where_no_answer_is_cut_none_is_asked_again(base, thirds, monkeypatch):
    whole = base.traces(BENIGN, thirds.train.benign)["finish_reason"] == "stop"
    benign = thirds.train.benign[whole.to_numpy()]
    monkeypatch.setattr(engine.Engine, "ask", lambda *_: pytest.fail("asked"))
    assert len(tuned.collect_complete_answers(base, benign)) == whole.sum() > 5


@pytest.fixture
def told(monkeypatch):
    """The texts of all answers that are labelled, with the ids of what was asked."""
    found, real = [], labelling.label_answers

    def label_answers(traces, corpus, **more):
        found.extend(zip(traces["prompt_id"], traces["response"], strict=True))
        return real(traces, corpus, **more)

    monkeypatch.setattr(labelling, "label_answers", label_answers)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["self-reminder", "smooth-llm", "ablated", "steered", "self-cd", "rewritten"],
)
def test_no_text_of_an_answer_to_a_twin_is_on_disk(
    base, thirds, name, results, told, watched, capfd
):
    decide = (
        catalogue.all_remedies()[name]
        .apply(base, thirds.train, thirds.validation)
        .decide
    )
    twins = thirds.test.twins.head(6)
    found = decide(TWINS, twins)
    assert len(told) >= len(twins) and {
        one.partition("~")[0] for one, _ in told
    } == set(twins["prompt_id"])
    if name != "self-cd":
        assert all("QUOKKA" in text for _, text in told)
    texts = [text for _, text in told if len(text) > 12]
    assert len(texts) >= 3, "there is something to look for"
    files = [path for path in results.rglob("*") if path.is_file()]
    new = [path for path in files if f"{TWINS}--" in str(path)]
    assert new and watched
    everything = [(path, texts_in(path)) for path in new] + watched
    assert not [path for path, text in everything if any(one in text for one in texts)]
    shown = capfd.readouterr()
    assert not any(one in shown.out + shown.err for one in texts)
    assert found["response"].isna().all()
    if name == "self-cd":  # numbers are kept, without the answer
        assert (
            stores.Store("test")
            .read("traces", f"{TWINS}--self-cd", base.name)["response"]
            .isna()
            .all()
        )


KILLS = (
    (engine.Engine, "ask", 3),
    (labelling, "label_answers", 2),
    (LabelledParts, "add", 2),
    (LabelledParts, "compact", 1),
    (stores, "write_file", 1),
    (Parts, "clear", 1),
)
"""Steps that a run does not survive, and at which call of them."""


@pytest.mark.slow
def test_kills_cost_a_batch_at_most_and_leave_no_text(
    base, thirds, results, told, watched, monkeypatch
):
    """Twelve twins in three copies, in batches of eight."""
    twins, asked, real = thirds.test.twins.head(12), [], engine.Engine.ask
    monkeypatch.setattr(
        engine.Engine,
        "ask",
        lambda self, batch: asked.extend(batch) or real(self, batch),
    )
    decide = (
        catalogue.all_remedies()["smooth-llm"]
        .apply(base, thirds.train, thirds.validation)
        .decide
    )
    for owner, step, nth in KILLS:
        kept, calls = getattr(owner, step), []

        def killed(*given, kept=kept, calls=calls, nth=nth, **named):
            calls.append(1)
            return dies() if len(calls) == nth else kept(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, step, killed)
            with pytest.raises(Killed):
                decide(TWINS, twins)
        assert not [
            path
            for path in results.rglob("*")
            if path.is_file() and TWINS in str(path) and "QUOKKA" in texts_in(path)
        ]
    found = decide(TWINS, twins)
    # Of 36 copies a kill as they are labelled or kept loses a batch; one before the
    # engine answers loses nothing.
    assert 36 <= len(asked) <= 36 + 2 * 8
    asked.clear()
    pd.testing.assert_frame_equal(decide(TWINS, twins), found)
    assert asked == [] and not [
        path for path, text in watched if TWINS in str(path) and "QUOKKA" in text
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ablated", pytest.param("steered", marks=pytest.mark.weekly), "self-cd"]
)
def test_a_resumed_run_that_learns_anew_asks_nothing_twice(
    base, thirds, corpora, deep_folder, name, told, monkeypatch
):
    twins = thirds.test.twins.head(12)
    with monkeypatch.context() as patch:
        patch.setattr(LabelledParts, "compact", dies)
        with pytest.raises(Killed):
            catalogue.all_remedies()[name].apply(
                base, thirds.train, thirds.validation
            ).decide(TWINS, twins)
    assert sorted(one for one, _ in told) == sorted(twins["prompt_id"])
    again = remedied.untouched(deep_folder, corpora)
    found = (
        catalogue.all_remedies()[name]
        .apply(again, thirds.train, thirds.validation)
        .decide(TWINS, twins)
    )
    assert len(told) == len(found) == 12


@pytest.mark.slow
def test_all_remedies_on_one_map(base, thirds):
    names = ["self-reminder", "threshold", "veto-isolation"]
    found = decisions.decide_test_split(base, catalogue.select_remedies(names), thirds)
    assert set(found) == {"untouched", *names}
    for own in found.values():
        for of, prompts in zip((BENIGN, TWINS), thirds.test, strict=True):
            assert own[of]["prompt_id"].tolist() == prompts["prompt_id"].tolist()


@pytest.mark.slow
def test_the_untouched_model_is_asked_safe_prompts_of_others(base, thirds, results):
    """As it was asked the corpus, of which the prompts here are; and no answer is kept."""
    prompts = thirds.test.benign.head(5)
    untouched = decisions.without_remedy(base)
    found = untouched.decide(XSTEST_SAFE, prompts)
    pd.testing.assert_series_equal(
        found["label"], base.decide(BENIGN, prompts)["label"]
    )
    assert found["response"].isna().all()
    pd.testing.assert_frame_equal(untouched.decide(XSTEST_SAFE, None), found)
    (folder,) = {
        path.parent.name
        for path in results.rglob(f"{base.name}.csv")
        if XSTEST_SAFE in str(path)
    }
    assert folder == f"{XSTEST_SAFE}--untouched"


@pytest.mark.slow
def test_an_adapter_is_trained_kept_and_merged(base, thirds, results, capfd):
    before, names = (
        logits(base.local.model.network),
        [name for name, _ in base.local.model.network.named_modules()],
    )
    system = catalogue.all_remedies()["tuned-1"].apply(
        base, thirds.train, thirds.validation
    )
    twins = thirds.test.twins.head(4)
    found = system.decide(TWINS, twins)
    folder = (
        results / "test" / "adapters" / f"{BENIGN}--learned" / f"{base.name}--tuned-1"
    )
    assert {path.name for path in folder.iterdir()} >= {
        "adapter_model.safetensors",
        "adapter_config.json",
        "told.json",
    }
    assert list(folder.parent.iterdir()) == [folder], "what training needed is gone"
    told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    losses = pd.DataFrame(told["losses"])
    assert losses["epoch"].tolist() == [1, 2, 3, 4] and np.isfinite(
        losses[["loss", "eval_loss"]]
    ).all(axis=None)
    assert told["best_epoch"] == losses["epoch"][losses["eval_loss"].idxmin()]
    assert (
        set(told["prompts"]) <= ids_of(thirds.train)
        and len(told["prompts"]) == 2 * told["pairs"]
    )
    assert set(told["held"]) <= ids_of(thirds.validation)
    merged = system.respondent()
    assert not torch.equal(logits(merged.model.network), before), (
        "it has learned something"
    )
    assert torch.equal(logits(base.local.model.network), before)
    assert [name for name, _ in base.local.model.network.named_modules()] == names
    meta = stores.read_meta(base.store.path("labels", f"{TWINS}--tuned-1", base.name))
    assert (
        meta["learned"]["losses"] == told["losses"] and "+tuned-" in meta["weights_id"]
    )
    capfd.readouterr()
    again = catalogue.all_remedies()["tuned-1"].apply(
        base, thirds.train, thirds.validation
    )
    pd.testing.assert_frame_equal(again.decide(TWINS, twins), found)
    assert torch.equal(
        logits(again.respondent().model.network), logits(merged.model.network)
    )
    assert "is trained" not in capfd.readouterr().out


@pytest.mark.slow
def test_models_with_a_point_in_their_name_are_tuned_apart(
    base, thirds, deep_folder, corpora, monkeypatch
):
    """qwen2.5-coder--safety--tuned-1 and qwen2.5-other--safety--tuned-2 are trained at
    the same time, say.
    """
    places = []

    def argued(self, model, arguments, **_):
        places.append(arguments.output_dir)
        raise Killed

    monkeypatch.setattr("transformers.Trainer.__init__", argued)
    for seed in (1, 2):
        with pytest.raises(Killed):
            folder = paths.RESULTS / f"qwen2.5-coder-0.5b--safety--tuned-{seed}"
            rows = tuned.make_training_rows(base, thirds.train, True, seed)
            tuned.train_adapter(base, rows, rows, seed, folder)
    assert len(set(places)) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    not has_model(), reason="the default model's weights package is not installed"
)
@pytest.mark.weekly
def test_the_real_model_is_itself_again_and_contrasts_as_the_formula_says(
    results, recorded_corpus
):
    real = loading.load_model(loading.resolve_model("smollm2-135m-instruct"))
    before = logits(real.network)
    for around in (
        ablation(real.network).on(real.network),
        steering(real.network).on(real.network, 1),
    ):
        with around:
            assert not torch.equal(logits(real.network), before)
        assert torch.equal(logits(real.network), before)
    too_few = recorded_corpus.iloc[[3, 400, 800]].reset_index(drop=True)
    found = contrasted(real, too_few, 2.0, 3)
    expected = [by_hand(real, text, 2.0, 3) for text in too_few["text"]]
    clear = [lead > CLEAR for _, lead in expected]
    said = [
        str(real.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        for ids, _ in expected
    ]
    assert any(clear)
    assert [a for a, ok in zip(found["response"], clear, strict=True) if ok] == [
        b for b, ok in zip(said, clear, strict=True) if ok
    ]
    recorded = trace_store.read_traces(
        stores.CorpusFiles(stores.Store("recorded"), "paraguard_mini"),
        f"{real.name}--safety",
        too_few,
    )
    wrapped = contrasted(real, too_few, 0.0, 3)
    assert (
        refusal.first_tokens(wrapped).tolist()
        == refusal.first_tokens(recorded).tolist()
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not has_model(), reason="the default model's weights package is not installed"
)
def test_a_direction_of_the_real_model_tells_refused_from_accepted(recorded_corpus):
    """What is read off the real model is what the record's decisions hang on."""
    corpora = {
        "paraguard_mini": recorded_corpus,
        "paraguard_twins_1": (
            stores.Store("recorded").read("corpus", "paraguard_twins_1")
        ),
    }
    base = UntouchedSystem(
        stores.Store("recorded"),
        "smollm2-135m-instruct-q4_1--safety",
        corpora,
        remedied.config_of("", store="recorded"),
    )
    labels = base.decide("paraguard_mini")["label"]
    rows = [
        recorded_corpus[(labels == one).to_numpy()].iloc[:8]
        for one in ("reject", "accept")
    ]
    context = base.local.context(text_of("safety"), base.decoding)
    refused, accepted = (
        inside.read_activations(base.local, context, own, 8)[:, 20] for own in rows
    )
    away = refused[::2].mean(axis=0) - accepted[::2].mean(axis=0)
    assert (refused[1::2] @ away).mean() > (accepted[1::2] @ away).mean()
