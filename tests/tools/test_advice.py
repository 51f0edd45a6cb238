"""Test the advice on a model that refuses too much: the rule by hand, and what the
command writes and says.
"""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.remedies import verdicts
from paraguard_lab.remedies.catalogue import UNTOUCHED
from paraguard_tools.pages import advice
from paraguard_utils import paths, stores

RECORDED = stores.Store("recorded")
CORPUS, MODEL = "paraguard_mini", "smollm2-135m-instruct"
SYSTEM = "smollm2-135m-instruct-q4_1--safety"
LARGE, SMALL = (
    f"qwen2.5-coder-{size}b-instruct-q4_k_m--safety" for size in ("1.5", "0.5")
)
FORMULA = "=1+1"


def row(
    remedy,
    frr,
    twins,
    queries=1.0,
    system=SYSTEM,
    kind="decision",
    dr=0.0,
    coin=-0.1,
    coin_p=1e-4,
):
    """One row of the map, every interval 0.04 wide; verdicts are those of 07.

    Unless told otherwise, it does better than a coin.
    """
    values = {
        "frr_change": frr,
        "twins_change": twins,
        "dr_change": dr,
        "over_change": 0.0,
        "against_coin": coin,
    }
    ends = {
        f"{name}{end}": values[name] + by
        for name in values
        for end, by in (("_low", -0.02), ("_high", 0.02))
    }
    role = {UNTOUCHED: "", "veto-isolation": "ideal"}.get(remedy, "remedy")
    about = {
        "system": system,
        "remedy": remedy,
        "kind": kind,
        "source": "ours",
        "n_scored": 400,
        "n_reject": 90,
    }
    about |= {"role": role, "too_few_for_change": False, "over_p": 1.0}
    about["coin_p"] = coin_p
    return (
        about
        | {"queries": queries, "frr": 0.5 + frr, "twins": 0.9 + twins}
        | values
        | ends
    )


def on_map(*rows, system=SYSTEM):
    """A system's map, the untouched system first."""
    frame = pd.DataFrame(
        [row(UNTOUCHED, np.nan, np.nan, system=system, kind=""), *rows]
    )
    return verdicts.add_remedy_verdicts(frame)


@pytest.mark.slow
def test_the_one_that_falls_for_sure_and_keeps_its_twins_is_taken():
    rows = on_map(
        row("threshold", -0.01, 0.0),  # from -0.03 to 0.01: may not fall at all
        row("rewritten", -0.30, -0.10),  # twins from -0.12 to -0.08: lost
        row("steered", -0.30, -0.04),  # from -0.06 to -0.02: lost as well
        row("ablated", -0.30, -0.035),  # from -0.055 to -0.015
        row("self-cd", -0.25, -0.015, queries=2),  # from -0.035: kept
        row("veto-isolation", -0.40, 0.0),  # nobody can deploy it
    )
    found = advice.choose_remedy(rows)
    assert found.remedy["remedy"] == "self-cd" and found.trade_off is None
    assert found.tried == ["threshold", "rewritten", "steered", "ablated", "self-cd"]


@pytest.mark.slow
def test_the_cheapest_is_taken_before_the_largest_fall():
    rows = on_map(row("vote", -0.30, 0.0, queries=3), row("rewritten", -0.05, 0.0))
    assert advice.choose_remedy(rows).remedy["remedy"] == "rewritten"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [(-0.10, -0.20, "b"), (-0.20, -0.10, "a"), (-0.10, -0.10, "a")],
)
def test_of_equally_cheap_ones_the_largest_fall_is_taken_then_the_first(
    first, second, taken
):
    rows = on_map(row("a", first, 0.0), row("b", second, 0.0))
    assert advice.choose_remedy(rows).remedy["remedy"] == taken


@pytest.mark.parametrize(("coin", "coin_p"), [(-0.01, 0.4), (0.1, 1e-4), (np.nan,) * 2])
def test_what_a_coin_does_as_well_is_never_advised(coin, coin_p):
    # Twins are kept and FRR falls for sure, as of a coin that answers 3 % of refusals.
    rows = on_map(row("veto-reworded", -0.05, 0.0, coin=coin, coin_p=coin_p))
    found = advice.choose_remedy(rows)
    assert found.remedy is None and found.trade_off["remedy"] == "veto-reworded"


@pytest.mark.slow
def test_without_a_winner_the_price_is_told():
    rows = on_map(
        row("rewritten", -0.20, -0.10),  # 0.10 / 0.20 = 0.5
        row("ablated", -0.40, -0.12, queries=2),  # 0.3
        row("tuned-1", -0.10, -0.03),  # 0.3 too, and asks less
        row("threshold", -0.01, -0.001),  # 0.1, but may not fall
        row("veto-isolation", -0.40, -0.08),  # 0.2, but nobody can deploy it
        row("self-reminder", 0.20, 0.05),
    )
    found = advice.choose_remedy(rows)
    assert found.remedy is None and found.trade_off["remedy"] == "tuned-1"
    assert found.trade_off["price"] == pytest.approx(0.3)
    found = advice.choose_remedy(rows[rows["remedy"] != "tuned-1"])
    assert found.trade_off["remedy"] == "ablated" and found.trade_off[
        "price"
    ] == pytest.approx(0.3)


@pytest.mark.slow
def test_twins_that_rise_where_all_is_open_cost_nothing_that_is_known():
    open_one = row("b", -0.20, 0.01) | {"twins_change_low": -0.06}
    rows = on_map(row("a", -0.30, -0.10), open_one)
    assert rows["twins_verdict"].tolist() == ["", "lost", "undecided"]
    found = advice.choose_remedy(rows)
    assert (
        found.remedy is None
        and found.trade_off["remedy"] == "b"
        and found.trade_off["price"] == 0
    )


@pytest.mark.parametrize(
    "rows",
    [
        on_map(),
        on_map(row("self-reminder", 0.20, 0.05)),
        on_map(row("paraphrased", np.nan, np.nan)),
        on_map(row("paraphrased", -0.2, np.nan)),
        on_map(row("veto-isolation", -0.4, 0.0)),
    ],
    ids=["no remedy", "none falls", "undefined", "twins undefined", "not deployable"],
)
def test_nothing_is_said_where_nothing_falls_or_nothing_is_known(rows):
    found = advice.choose_remedy(rows)
    assert found.remedy is None and found.trade_off is None


@pytest.mark.slow
def test_the_map_reads_back_to_the_same_advice(tmp_path):
    rows = on_map(row("rewritten", -0.20, -0.10), row("vote", -0.20, 0.0, queries=2.5))
    stores.write_file(tmp_path / "remedy_map.csv", rows, "tables", {})
    back = advice.choose_remedy(stores.read_file(tmp_path / "remedy_map.csv", "tables"))
    assert back.remedy["remedy"] == "vote" and back.remedy["queries"] == 2.5


@pytest.mark.slow
def test_whose_rows_speak_for_a_system(results):
    mine, record = stores.Store("mine"), stores.Store("others")
    files = stores.CorpusFiles(mine, CORPUS)
    assert advice.find_measured_remedies(files, record, SYSTEM, 0.5) is None

    strict = LARGE.replace("safety", "strict")
    published = {LARGE: 0.54, SMALL: 0.65, strict: 0.60}
    table1 = pd.DataFrame(
        {"system": [*published] * 2, "frr": [*published.values()] * 2}
    )  # both interpretations
    record.write("tables", "table1_systems", frame=table1, meta={})
    recorded = [
        on_map(row("rewritten", -0.2, 0.0, system=name), system=name)
        for name in published
    ]
    record.write("tables", advice.REMEDY_MAP_TABLE, frame=pd.concat(recorded), meta={})
    # the nearest is under another system prompt
    for frr, wanted in ((0.61, SMALL), (0.59, LARGE), (0.0, LARGE), (1.0, SMALL)):
        rows, place = advice.find_measured_remedies(files, record, SYSTEM, frr)
        assert place == "others" and set(rows["system"]) == {wanted}
    assert advice.find_measured_remedies(files, record, "tiny--permissive", 0.5) is None
    assert advice.find_measured_remedies(files, record, SYSTEM, np.nan) is None
    rows, _ = advice.find_measured_remedies(files, record, SMALL, 0.0)
    assert set(rows["system"]) == {SMALL}, "its own, however far its FRR"

    own = on_map(row("vote", -0.2, 0.0))
    mine.write(
        "tables",
        advice.REMEDY_MAP_TABLE,
        frame=own,
        meta={"parameters": {"corpus": "another"}},
    )
    _, place = advice.find_measured_remedies(files, record, SYSTEM, 0.6)
    assert place == "others", "measured on other prompts"
    mine.write(
        "tables",
        advice.REMEDY_MAP_TABLE,
        frame=own,
        meta={"parameters": {"corpus": CORPUS}},
    )
    rows, place = advice.find_measured_remedies(files, record, SYSTEM, 0.6)
    assert (
        set(rows["system"]) == {SYSTEM}
        and place == "mine"
        and rows["remedy"].tolist() == [UNTOUCHED, "vote"]
    )


def copied(store, *kinds):
    """Put recorded files of the system into a live store, as 02 and 03 would leave
    them.
    """
    for kind in kinds:
        for end in ("", ".meta.json"):
            source = f"{RECORDED.path(kind, CORPUS, SYSTEM)}{end}"
            shutil.copyfile(source, f"{store.output_path(kind, CORPUS, SYSTEM)}{end}")


def answered(name="mine"):
    """A live store with all that is read; its corpus has a category that a spreadsheet
    would run.
    """
    store = stores.Store(name)
    copied(store, "traces", "labels", "pairs", "scores", "answers")
    corpus = RECORDED.read("corpus", CORPUS).assign(category=FORMULA)
    store.write("corpus", CORPUS, frame=corpus, meta={})
    path = store.path("scores", CORPUS, SYSTEM)
    meta = stores.read_meta(path)
    meta["inputs"]["corpus"] = stores.frame_hash(corpus)
    stores.write_meta(path, meta)
    return store


@pytest.mark.slow
def test_the_command_says_and_writes_what_to_do(results, command):
    store = answered()
    # Of answers to requests that ask for harm there are none; were there any, they
    # would not be read.
    twins = RECORDED.read("labels", "paraguard_twins", SYSTEM).assign(response="QUOKKA")
    store.write("labels", "paraguard_twins", SYSTEM, frame=twins, meta={})
    store.write(
        "tables",
        advice.REMEDY_MAP_TABLE,
        frame=on_map(row("vote", -0.20, 0.0, queries=2.5)),
        meta={},
    )
    done = command("remedy", "--model", MODEL, "--store", "mine")
    assert done.error == ""
    folder = results / "mine" / "advice" / SYSTEM
    names = ["advice.txt", "brittle_clusters.csv", "remedies.csv", "tuning.jsonl"]
    assert (
        sorted(
            path.name
            for path in folder.iterdir()
            if not path.name.endswith(".meta.json")
        )
        == names
    )

    assert (
        "The cheapest remedy: vote (2.5 x the model a prompt)" in done.printed
        and "tried: vote" in done.printed
    )
    assert (
        "FRR by -0.20 [-0.22, -0.18], twins refused by 0.00 [-0.02, 0.02] (kept)"
        in done.printed
    )
    assert "answering as many refusals at random: better" in done.printed
    assert (
        "in the mine store" in done.printed and "not on your model" not in done.printed
    )
    assert done.printed.startswith((folder / "advice.txt").read_text(encoding="utf-8"))

    with (folder / "brittle_clusters.csv").open(encoding="utf-8", newline="") as file:
        clusters = list(csv.DictReader(file))
    assert not any(
        cell.startswith(("=", "+", "@", "\t"))
        for cluster in clusters
        for cell in cluster.values()
    )
    assert {cluster["category"] for cluster in clusters} == {f"'{FORMULA}"}
    corpus = RECORDED.read("corpus", CORPUS)
    labels = RECORDED.read("labels", CORPUS, SYSTEM)["label"]
    decided = labels.groupby(corpus["cluster_id"]).agg(
        lambda own: {"accept", "reject"} <= set(own)
    )
    assert sorted(cluster["cluster_id"] for cluster in clusters) == sorted(
        decided.index[decided]
    )
    assert f"{decided.sum()} of {len(decided)} clusters" in done.printed
    first = corpus.loc[corpus["cluster_id"] == clusters[0]["cluster_id"], "text"]
    assert all(text[:60] in done.printed for text in first)
    assert (
        sum(line.startswith("     ") for line in done.printed.splitlines())
        == 6 * advice.MAX_PRINTED
    )

    examples = [
        json.loads(line)
        for line in (folder / "tuning.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    recorded = (
        RECORDED.path("tuning", CORPUS, SYSTEM).read_text(encoding="utf-8").splitlines()
    )
    assert examples == [json.loads(line) for line in recorded], "as 03 makes them"
    assert (
        f"{len(examples)} examples" in done.printed
        and paths.display_path(folder / "tuning.jsonl") in done.printed
    )

    asked = RECORDED.read("corpus", "paraguard_twins")["text"]
    for path in folder.iterdir():
        content = path.read_text(encoding="utf-8")
        assert "QUOKKA" not in content and not any(text in content for text in asked)


@pytest.mark.slow
def test_what_was_measured_on_another_model_says_so(results, command, monkeypatch):
    answered()
    monkeypatch.setattr(advice, "RECORDED", "others")
    record = stores.Store("others")
    published = pd.DataFrame({"system": [LARGE, SMALL], "frr": [0.54, 0.65]})
    record.write("tables", "table1_systems", frame=published, meta={})
    rows = on_map(
        row("ablated", -0.40, -0.12, queries=2, system=LARGE, kind="inside"),
        system=LARGE,
    )
    record.write("tables", advice.REMEDY_MAP_TABLE, frame=rows, meta={})
    done = command("remedy", "--model", MODEL, "--store", "mine")
    assert done.error == ""
    assert (
        "No remedy on the map lowers false refusals, keeps right ones and does better"
        " than answering as many refusals at random" in done.printed
    )
    assert (
        "A trade-off, no advice: ablated" in done.printed
        and "0.30 points for each point of FRR" in done.printed
    )
    assert (
        "Measured on Qwen2.5-Coder-1.5B, safety instruction, not on your model"
        in done.printed
    )
    assert (
        f'paraguard run 07 --model {MODEL} --store mine -p remedies="[ablated]"'
        in done.printed
    )
    assert set(
        pd.read_csv(results / "mine" / "advice" / SYSTEM / "remedies.csv")["system"]
    ) == {LARGE}


@pytest.mark.slow
def test_without_a_map_the_rest_is_there(results, command, monkeypatch):
    monkeypatch.setattr(advice, "REMEDY_MAP_TABLE", "no_map")
    done = command("remedy", "--model", MODEL, "--store", "recorded")
    assert (
        done.error == ""
        and "07 has not been run" in done.printed
        and f'run 07 --model {MODEL} -p remedies="[cheap]"' in done.printed
    )
    folder = results / "recorded" / "advice" / SYSTEM
    assert (folder / "tuning.jsonl").is_file() and not (
        folder / "remedies.csv"
    ).exists()


ASK = (
    f'run paraguard run 02 03 --model {MODEL} --store mine -p system_prompts="[safety]"'
)
SCORE = f"run paraguard run 03 --model {MODEL} --store mine"


@pytest.mark.parametrize(
    ("kinds", "missing", "wanted"),
    [
        ((), "answers", ASK),
        (("traces",), "labels", ASK),
        (("traces", "labels"), "pairs", SCORE),
        (("traces", "labels", "pairs"), "scores", SCORE),
    ],
)
def test_what_is_missing_is_one_line_with_the_command_to_run(
    results, command, kinds, missing, wanted
):
    copied(stores.Store("mine"), *kinds)
    error = command("remedy", "--model", MODEL, "--store", "mine").error
    assert (
        error.endswith(wanted)
        and f"the mine store has no {missing} of model" in error
        and "\n" not in error
    )
    assert not (results / "mine" / "advice").exists()


def test_another_system_prompt_that_was_asked_is_named(results, command):
    copied(stores.Store("mine"), "traces")
    error = command(
        "remedy", "--model", MODEL, "--store", "mine", "--system-prompt", "none"
    ).error
    assert "(there are some under safety)" in error and error.endswith(
        '-p system_prompts="[none]"'
    )


def test_a_server_and_another_corpus_are_part_of_the_command(results, command):
    given = ("--model", "openai/a b", "--store", "mine", "--corpus", "own")
    corpus = RECORDED.read("corpus", CORPUS)
    stores.Store("mine").write("corpus", "own", frame=corpus, meta={})
    error = command("remedy", *given).error
    wanted = (
        "--model 'openai/a b' --store mine --corpus own -p base_url=URL"
        ' -p system_prompts="[safety]"'
    )
    assert error.endswith(f"run paraguard run 02 03 {wanted}")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--system-prompt", "saftey"), "there is no system prompt 'saftey'"),
        (("--store", "../x"), "parameter 'store': "),
        (("--corpus", "nothing"), "corpus/nothing.csv is not in the live store"),
        (("--corpus", "paraguard_twins"), "not for requests that ask for harm"),
    ],
)
def test_other_errors_are_one_line(results, command, given, wanted):
    error = command("remedy", "--model", MODEL, *given).error
    assert wanted in error and "\n" not in error
