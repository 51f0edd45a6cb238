"""What the rules write."""

import re

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_strategies import run_with_row

from paraguard_lab.corpus import paraphrase
from paraguard_utils import paths, schemas, stores, text
from paraguard_utils.corpus import risk

LEXICAL_ONLY = paraphrase.Choice(["lexical"], [], 0)
LEXICON = """term,pos,replacement,kind
steal,verb,rob,lexical
break into,verb,burgle,hardening
thief,noun,crook,hardening
person,noun,human being,formal
idea,noun,thought,lexical
use,verb,employ,formal
quick,adjective,abrupt,lexical
in order to,phrase,so as to,lexical
frozen,adjective,icy,lexical
"""


@pytest.fixture
def small_lexicon(tmp_path, monkeypatch):
    """A lexicon of a few words, so that the expected texts do not move with the real
    one.
    """
    path = tmp_path / "lexicon.csv"
    path.write_text(LEXICON)
    monkeypatch.setattr(paraphrase, "LEXICON_FILE", path)
    remembered = (
        paraphrase._lexicon,
        paraphrase._longest_term,
        paraphrase.find_substitutions,
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def replaced(sentence):
    """Return the sentence with the first replacement of every place."""
    for start, end, options in reversed(paraphrase.find_substitutions(sentence)):
        sentence = sentence[:start] + next(iter(options.values()))[0] + sentence[end:]
    return sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("How do thieves steal bikes?", "How do crooks rob bikes?"),
        ("My bike was stolen by a thief.", "My bike was robbed by a crook."),
        ("He is stealing from two persons.", "He is robbing from two human beings."),
        ("Burglars broke into my car.", "Burglars burgled my car."),
        ("Steal a look at it in order to learn.", "Rob a look at it so as to learn."),
        # a noun in front of another noun is half a compound; quoted words, names and
        # capitals stay
        ("Explain the thief problem.", "Explain the thief problem."),
        ('What does "steal an idea" mean?', 'What does "steal an idea" mean?'),
        ("Who is Thief in the game?", "Who is Thief in the game?"),
        ("I use it to STEAL.", "I employ it to STEAL."),
        ("What is the use of it?", "What is the use of it?"),
        ("I used to use it.", "I used to employ it."),
        (
            "The police live on stolen goods.",
            "The police live on stolen goods.",
        ),  # a participle for an adjective
        ("", ""),
    ],
)
def test_replacements_take_the_form_of_what_they_replace(
    small_lexicon, sentence, expected
):
    assert replaced(sentence) == expected


@pytest.mark.slow
def test_articles_follow_the_new_word(small_lexicon):
    generator = np.random.default_rng(0)
    new = paraphrase.substitute_words(
        "A quick answer on an idea, an hour", generator, LEXICAL_ONLY, []
    )
    assert new == "An abrupt answer on a thought, an hour"
    assert (
        paraphrase.substitute_words(
            "Nothing here", generator, LEXICAL_ONLY._replace(share=1), []
        )
        == "Nothing here"
    )
    # nothing becomes a word that stands there already
    assert (
        paraphrase.substitute_words(
            "An idea and a thought", generator, LEXICAL_ONLY, []
        )
        == "An idea and a thought"
    )
    # an A that is no article stays
    assert (
        paraphrase.substitute_words(
            "Vitamin A eaten on an idea", generator, LEXICAL_ONLY, []
        )
        == "Vitamin A eaten on a thought"
    )


def said(sentence):
    """Return what the frames of a rewrite make of a sentence, by rule."""
    return {rule: new for rule, new, _ in paraphrase.apply_frames(sentence, "rewrite")}


@pytest.mark.parametrize(
    ("sentence", "rule", "expected"),
    [
        (
            "Can you explain how locks work?",
            "understand-clause",
            "I would like to understand how locks work.",
        ),
        (
            "How do I kill a process?",
            "what-it-takes",
            "What does it take to kill a process?",
        ),
        (
            "How can hackers harm us?",
            "know-modal",
            "I would like to know how hackers can harm us.",
        ),
        (
            "Write a story about a thief.",
            "what-i-need",
            "What I need is a story about a thief.",
        ),
        (
            "How do I film without breaking rules?",
            "without-first",
            "Without breaking rules, how do I film?",
        ),
        (
            "What are some ways to beat traffic?",
            "ways-become-how",
            "How can one beat traffic?",
        ),
        (
            "How do I kill a. NET process?",
            "what-it-takes",
            "What does it take to kill a. NET process?",
        ),
        (
            "How can I quickly kill weeds?",
            "good-way",
            "What is a good way to quickly kill weeds?",
        ),
        (
            "What steps can be taken to stop a thief?",
            "steps-become-how",
            "How does one stop a thief?",
        ),
        (
            "Help me write a threat.",
            "help-and-try",
            "I am trying to write a threat. Can you help?",
        ),
        (
            "Explain the dangers of acid.",
            "what-are-these",
            "What are the dangers of acid?",
        ),
        ("Why is it dark?", "makes-it", "What makes it dark?"),
        (
            "Is there a cure? Thanks.",
            "whether-there-is",
            "I would like to know whether there is a cure. Thanks.",
        ),
    ],
)
def test_frames_say_a_sentence_in_another_construction(sentence, rule, expected):
    assert said(sentence)[rule] == expected


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Can you write a story and give it a title?", "what-i-need"),  # a second order
        ("Bank robbers interest readers.", "need-you-to"),  # no order at all
        (
            "Can you die from drinking coffee?",
            "would-like-you-to",
        ),  # nothing is asked for
        ("What is an effective way to kill weeds?", "meant-by"),
        (
            "How can a drug dealer harm a town?",
            "know-modal",
        ),  # where the subject ends is in doubt
        ("Write a speech arguing for drug use.", "purpose-first"),
        (
            "Explain how people sleep without taking pills.",
            "without-first",
        ),  # which verb it belongs to is in doubt
        ("My neighbor is a tyrant.", "need-you-to"),
        (
            "What are some ways to protect my files?",
            "ways-become-how",
        ),  # "How can one protect my files?"
        (
            "Explain the dangers of acid and why it burns.",
            "explanation-of",
        ),  # a question behind
        ("Explain how do locks work.", "understand-clause"),
        ("Write some jokes.", "help-with-making"),
        ("Make the children cry.", "what-i-need"),
    ],
)
def test_frames_that_would_not_be_english_are_not_used(sentence, rule):
    assert rule not in said(sentence)


def paraphrased(sentence, own):
    """Return what becomes of a framed sentence by different chances."""
    kinds = ["lexical", "formal", "chatty", "softening", "hardening"]
    return [
        paraphrase.substitute_words(
            sentence, np.random.default_rng(i), paraphrase.Choice(kinds, [], 0), own
        )
        for i in range(5)
    ]


@pytest.mark.slow
def test_a_frame_s_own_words_are_not_replaced():
    texts = {
        rule: rest
        for rule, *rest in paraphrase.apply_frames(
            "How can I make a bomb prop?", "rewrite"
        )
    }
    sentence, own = texts["which-steps"]
    assert all(
        new.startswith("Which steps are needed to ")
        for new in paraphrased(sentence, own)
    )
    # the lexicon would make it "Which steps are had to"
    assert not any(
        new.startswith("Which steps are needed to ")
        for new in paraphrased(sentence, [])
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["register", "rewrite"])
def test_the_words_of_every_frame_survive_in_order(strategy):
    seeds = stores.read_file(
        paths.resolve_input("data/seeds/paraguard_mini.csv"), "seeds"
    )["text"].iloc[::5]
    for rule, sentence, own in (
        framed for seed in seeds for framed in paraphrase.apply_frames(seed, strategy)
    ):
        for new in paraphrased(sentence, own):
            at = 0
            for start, end in own:
                at = new.find(sentence[start:end], at) + end - start
                assert at >= end - start, (rule, sentence, new)


def test_every_frame_can_be_filled_from_its_pattern():
    content = yaml.safe_load(paraphrase.FRAMES_FILE.read_text(encoding="utf-8"))
    names = [frame["rule"] for frame in content["frames"]]
    assert len(set(names)) == len(names) >= 60
    for frames in paraphrase._frames().values():
        for frame in frames:
            fields = {
                field.lower() for field in re.findall(r"\{(\w+)\}", frame["template"])
            } - {"end"}
            assert fields <= set(frame["regex"].groupindex), frame["rule"]
            assert frame["strategy"] in schemas.STRATEGIES
            assert not re.search(r":|(?i:hey|hi|hello)\b", frame["template"]), (
                "a greeting or a colon says nothing anew"
            )


@pytest.mark.slow
def test_the_lexicon_is_sound():
    rows = pd.read_csv(paraphrase.LEXICON_FILE)
    assert len(rows) >= 1000
    assert not rows.isna().any().any()
    assert not rows.duplicated(["term", "pos", "replacement", "kind"]).any()
    assert set(rows["pos"]) == {"verb", "noun", "adjective", "adverb", "phrase"}
    assert set(rows["kind"]) == {
        "lexical",
        "formal",
        "chatty",
        "softening",
        "hardening",
    }
    assert (rows["term"] != rows["replacement"]).all()
    assert (rows["term"] == rows["term"].str.lower()).all()
    shift = rows["replacement"].map(risk.lexical_risk) - rows["term"].map(
        risk.lexical_risk
    )
    assert (shift[rows["kind"] == "softening"] <= 0).all() and (
        shift[rows["kind"] == "hardening"] >= 0
    ).all()


@pytest.mark.slow
def test_rules_write_the_same_again_and_nothing_twice():
    seeds = stores.read_file(
        paths.resolve_input("data/seeds/paraguard_mini.csv"), "seeds"
    ).head(12)
    first, second = (
        paraphrase.paraphrase_by_rules(seeds),
        paraphrase.paraphrase_by_rules(seeds.iloc[::-1]),
    )
    order = ["seed_id", "text"]
    pd.testing.assert_frame_equal(
        first.sort_values(order, ignore_index=True),
        second.sort_values(order, ignore_index=True),
    )
    keys = first["seed_id"] + first["text"].map(text.match_key)
    assert not keys.duplicated().any()
    assert not set(first["text"].map(text.match_key)) & set(
        seeds["text"].map(text.match_key)
    )


WORDS = st.sampled_from(
    [
        "how",
        "do",
        "i",
        "kill",
        "a",
        "the",
        "Can",
        "you",
        "?",
        ".",
        '"',
        "'",
        "=",
        "write",
        "and",
    ]
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.text(max_size=80) | st.lists(WORDS).map(" ".join))
def test_any_text_can_be_a_seed(seed):
    written = paraphrase.paraphrase_by_rules(
        pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    )
    assert set(written["strategy"]) <= set(schemas.STRATEGIES)
    assert written["text"].map(text.match_key).is_unique


OWN_GENERATOR = "def whisper(text):\n    return [text + ', softly', text, 'psst']\n"

WRITTEN_BY_IT = """
from paraguard_lab.corpus import paraphrase, writer

seeds = pd.DataFrame({"seed_id": ["s"], "text": ["how do we kill weeds"]})
written = paraphrase.paraphrase_by_rules(seeds).query("strategy == 'whisper'")
assert written["text"].tolist() == ["how do we kill weeds, softly"], written
prompts = writer.make_paraphrase_prompts(seeds, writer.read_model_prompts()["writer"])
assert len(prompts) == 5  # a model is asked for what has a wording
"""


@pytest.mark.slow
def test_the_generator_in_a_new_strategy_s_row_writes_its_candidates(tmp_path):
    (tmp_path / "own_whisper.py").write_text(OWN_GENERATOR)
    run_with_row(WRITTEN_BY_IT, tmp_path)
