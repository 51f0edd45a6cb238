"""What blind readers mark, and the rates that it corrects: planted readings."""

import numpy as np
import pandas as pd
import pytest

from paraguard_lab.analysis import label_noise
from paraguard_lab.core.label_noise import ReadCounts, correct_estimates, true_dr
from paraguard_lab.labels import annotations, blind, blind_marks
from paraguard_utils.analysis.system import System
from paraguard_utils.analysis.wording import find_cluster_pairs, wording_row
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import STRATEGIES
from paraguard_utils.stores import RECORDED, Store

STYLES = ["seed", *STRATEGIES]


def make_key(n: int) -> pd.DataFrame:
    """Return the key of n twins, rejected and accepted in turn."""
    labels = ["reject" if number % 2 else "accept" for number in range(n)]
    return pd.DataFrame(
        {
            "item": [f"item-{number:03d}" for number in range(n)],
            "kind": "twins",
            "corpus": "paraguard_twins",
            "system": "m--safety",
            "prompt_id": [f"c-{number}-twin-0" for number in range(n)],
            "label": labels,
            "label_again": labels,
        }
    )


def make_marks(key: pd.DataFrame, refuses: list[bool]) -> pd.DataFrame:
    """Return marks of all items."""
    marks = ["full_refusal" if yes else "full_compliance" for yes in refuses]
    return pd.DataFrame({"item": key["item"], "refusal": marks, "answer": "poor"})


def test_marks_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "marks.csv"
    path.write_text("item,refusal,answer\nitem-001, full_refusal,poor\n")
    assert blind_marks.read_marks(path).to_numpy().tolist() == [
        ["item-001", "full_refusal", "poor"]
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("item,refusal\na,full_refusal", "column 'answer' is missing"),
        ("item,refusal,answer\na,refused,poor", "a: refusal 'refused' is not one of"),
        ("item,refusal,answer\na,,poor", "a: refusal '' is not one of"),
        (
            "item,refusal,answer\na,unclear,poor\na,unclear,poor",
            "a is there twice",
        ),
    ],
)
def test_wrong_marks_are_named(tmp_path, lines, words):
    path = tmp_path / "marks.csv"
    path.write_text(lines)
    with pytest.raises(DataError, match=words):
        blind_marks.read_marks(path)


def test_marks_follow_the_items_and_not_the_rows():
    key = make_key(4)
    first = make_marks(key, [False, True, False, False])
    second = make_marks(key, [False, True, True, True])
    mixed = first.sample(frac=1, random_state=3)
    joined = blind_marks.join_marks(key, mixed, second)
    read = annotations.add_decisions(joined)
    assert read["reads"].tolist() == ["accept", "reject", "differ", "differ"]
    assert "item" not in read
    with pytest.raises(DataError, match=r"second reader's items .* 1 differ, item-003"):
        blind_marks.join_marks(key, first, second.head(3))


def test_what_changed_and_what_readers_differ_on_do_not_count():
    # Of 5 rejections one changed its label and one divides the readers: 2 of 3 refuse.
    key = make_key(10)
    key.loc[1, "label_again"] = "accept"
    refuses = [False] * 10
    for row in (1, 5, 7):
        refuses[row] = True
    first = make_marks(key, refuses)
    second = make_marks(key, [*refuses[:9], True])
    joined = blind_marks.join_marks(key, first, second)
    read = annotations.add_decisions(joined)
    equal = blind_marks.select_equal(read)
    assert blind_marks.count_readings(equal) == ReadCounts((2, 3), (0, 5))
    (row,) = blind_marks.compare_kinds(read).to_dict("records")
    assert (row["n"], row["changed"], row["differ"]) == (10, 1, 1)
    assert row["precision"] == pytest.approx(2 / 3)
    assert row["missed"] == 0


def make_prompts(n_clusters: int) -> pd.DataFrame:
    """Return requests in six phrasings."""
    ids = np.repeat([f"c{number}" for number in range(n_clusters)], 6)
    return pd.DataFrame(
        {
            "prompt_id": [f"{name}-{row % 6}" for row, name in enumerate(ids)],
            "cluster_id": ids,
            "strategy": STYLES * n_clusters,
        }
    )


def make_system(prompts: pd.DataFrame, refused: np.ndarray) -> System:
    """Return a system with these decisions."""
    labels = np.where(refused, "reject", "accept")
    frame = pd.DataFrame({"prompt_id": prompts["prompt_id"], "label": labels})
    clusters = ClusterBootstrap(prompts["cluster_id"], 200)
    return System.of("m--safety", prompts, frame, clusters)


def test_each_measure_is_corrected_by_the_formula_of_the_method():
    prompts = make_prompts(60)
    refused = np.random.default_rng(1).random(360) < 0.5
    system = make_system(prompts, refused)
    # Nearly certain shares, so that the factor for their own errors is 1
    counts = ReadCounts((900_000, 1_000_000), (100_000, 1_000_000), True)
    measures = ("frr", "dr", "dr_near", "dr_free")
    row = label_noise.correct_system(system, dict.fromkeys(measures, counts))
    usual = wording_row(system, find_cluster_pairs(prompts))
    near = np.isin(prompts["strategy"], ["seed", "softening", "hardening"])
    for measure, chosen in (("dr_near", near), ("dr_free", ~near)):
        assert row[measure] == pytest.approx(usual[measure])
        q = refused[chosen].mean()
        t = 0.9 * q + 0.1 * (1 - q)
        kept = (1 - row[measure]) * t * (1 - t) / (q * (1 - q) * 0.8**2)
        assert row[f"{measure}_read"] == pytest.approx(1 - kept, abs=1e-4)
    assert row["difference_read"] == pytest.approx(
        row["dr_free_read"] - row["dr_near_read"]
    )
    assert row["too_few"] == usual["too_few"]


def test_planted_errors_are_taken_out():
    # Free rewordings of a request are decided by a coin of the request's own, near
    # copies alike: DR of near-copies is 0. One decision in ten is labelled wrongly.
    rng = np.random.default_rng(5)
    prompts = make_prompts(1500)
    tendency = np.repeat(rng.beta(0.5, 0.5, 1500), 6)
    near = np.isin(prompts["strategy"], ["seed", "softening", "hardening"])
    one = np.repeat(rng.random(1500) < tendency[::6], 6)
    truth = np.where(near, one, rng.random(9000) < tendency)
    labelled = truth ^ (rng.random(9000) < 0.1)
    read = {}
    for measure, chosen in (
        ("frr", near | True),
        ("dr", near | True),
        ("dr_near", near),
        ("dr_free", ~near),
    ):
        sides = []
        for side in (True, False):
            refuses = truth[chosen & (labelled == side)]
            sides.append((int(refuses.sum()), len(refuses)))
        read[measure] = ReadCounts(*sides, True)
    row = label_noise.correct_system(make_system(prompts, labelled), read)
    true = label_noise.correct_system(
        make_system(prompts, truth), dict.fromkeys(read, ReadCounts((1, 1), (0, 1)))
    )
    assert true["dr_near"] == 0
    assert row["dr_near"] > 0.25, "as labelled, near-copies seem to differ"
    for measure in read:
        assert row[f"{measure}_read"] == pytest.approx(true[measure], abs=0.04)
        low, high = row[f"{measure}_read_low"], row[f"{measure}_read_high"]
        assert low < true[measure] < high


def test_pooled_readings_give_wider_intervals():
    # All answers of the system were read: nothing is uncertain but the clusters. If the
    # same readings are of several systems, the shares are uncertain too.
    prompts = make_prompts(60)
    system = make_system(prompts, np.random.default_rng(2).random(360) < 0.5)
    decided = system.decided
    rejected = int(decided["rejected"].sum())
    sides = (rejected * 9 // 10, rejected), (36, 360 - rejected)
    widths = []
    for pooled in (False, True):
        read = ReadCounts(*sides, pooled)
        frr = correct_estimates(system.clusters, decided, system.dr(), read)["frr"]
        widths.append(frr.high - frr.low)
    assert widths[1] > widths[0]


def test_nothing_read_corrects_nothing():
    system = make_system(make_prompts(20), np.arange(120) % 2 == 0)
    unread = blind_marks.join_marks(make_key(0), *[make_marks(make_key(0), [])] * 2)
    read = annotations.add_decisions(unread)
    (row,) = label_noise.correct_by_kind({"twins": [system]}, read).to_dict("records")
    assert np.isnan(row["dr_near_read"]) and not np.isnan(row["dr_near"])


@pytest.fixture(scope="module")
def unread_systems() -> dict[str, list[System]]:
    return blind.read_unread_systems(Store(RECORDED))


@pytest.mark.slow
def test_unread_systems_have_the_rates_of_the_record(unread_systems):
    counts = {kind: len(found) for kind, found in unread_systems.items()}
    assert counts == {"twins": 9, "wordings": 12, "reworded": 3, "remedied": 9}
    tables = Store(RECORDED)
    known = {}
    for row in tables.read("tables", "instruction_wordings").itertuples():
        known["wordings", row.system] = row.frr
    for row in tables.read("tables", "remedy_map").itertuples():
        known["remedied", f"{row.remedy} {row.system}"] = row.frr
    for kind in ("wordings", "remedied"):
        for system in unread_systems[kind]:
            decided = disagreement.count_decisions(
                system.refused, system.prompts["cluster_id"]
            )
            rate = decided["rejected"].sum() / decided["n"].sum()
            assert rate == pytest.approx(known[kind, system.name], abs=1e-4)


@pytest.mark.slow
def test_rewordings_have_a_refused_share_only(unread_systems):
    counts = ReadCounts((9, 10), (1, 10), True)
    measures = dict.fromkeys(("frr", "dr", "dr_near", "dr_free"), counts)
    system = unread_systems["reworded"][0]
    row = label_noise.correct_system(system, measures)
    q = (system.refused == 1).mean()
    assert row["frr_read"] == pytest.approx(0.9 * q + 0.1 * (1 - q))
    assert np.isnan(row["dr"]) and np.isnan(row["dr_near_read"])


def test_one_correction_of_near_and_free_never_narrows_the_gap(unread_systems):
    # A1 says so of the systems that it shows: their corrected gap is no test of its sign.
    shown = Store(RECORDED).read("tables", "label_noise_kinds")
    shown = shown[~shown["too_few"] & shown["dr_near"].notna()]
    shown = shown[shown["kind"] != label_noise.HARMLESS]
    assert len(shown) > 9
    for row in shown.itertuples():
        (system,) = [s for s in unread_systems[row.kind] if s.name == row.system]
        scored = system.is_scored
        near = np.isin(system.prompts["strategy"], ["seed", "softening", "hardening"])
        q_near = system.refused[scored & near].mean()
        q_free = system.refused[scored & ~near].mean()
        for precision in np.linspace(0.5, 1, 11):
            for missed in np.linspace(0, 0.3, 7):
                dr_near = true_dr(row.dr_near, q_near, precision, missed)
                dr_free = true_dr(row.dr_free, q_free, precision, missed)
                assert dr_free - dr_near >= row.difference - 1e-4
