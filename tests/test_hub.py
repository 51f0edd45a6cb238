"""The data set for a hub: what is built is loaded by the hub's own libraries, and the
record follows from it.
"""

import re
import sys

import pandas as pd
import pytest
import yaml
from huggingface_hub import DatasetCard

from paraguard_lab.core.disagreement import disagreement_parts
from paraguard_utils import paths, registry, stores
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused

sys.path.insert(0, str(paths.ROOT / "hub"))
import build

RECORD = stores.Store("recorded")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The folder that is uploaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FOLDER", tmp_path_factory.mktemp("hub") / "dataset")
        for name in ("card.md", "eval.yaml"):
            (build.FOLDER.parent / name).write_bytes(
                (paths.ROOT / "hub" / name).read_bytes()
            )
        build.build()
        yield build.FOLDER


def read(dataset, name):
    return pd.read_parquet(dataset / name / "test.parquet")


@pytest.mark.slow
def test_the_record_follows_from_what_is_uploaded(dataset):
    decisions, requests = read(dataset, "decisions"), read(dataset, "harmless")
    table = (
        RECORD.read("tables", "table1_systems")
        .query("interpretation == 'relative'")
        .set_index("system")
    )
    chat = decisions[
        (decisions["kind"] == "chat") & (decisions["corpus"] == "harmless")
    ]
    assert set(chat["system"]) == set(registry.published_systems("chat").index)
    for system, own in chat.merge(requests, on="prompt_id", validate="m:1").groupby(
        "system"
    ):
        refused = as_refused(own["label"].to_numpy(object), blocked=False)
        decided = disagreement.count_decisions(refused, own["cluster_id"])
        assert pd.Series(refused).mean() == pytest.approx(
            table.loc[system, "frr"], abs=1e-4
        )
        assert disagreement_parts(decided["n"], decided["rejected"])[
            2
        ] == pytest.approx(table.loc[system, "dr"], abs=1e-4, nan_ok=True)


@pytest.mark.slow
def test_no_answer_to_a_harmful_request_is_uploaded(dataset):
    decisions, harmful = read(dataset, "decisions"), read(dataset, "harmful")
    own = decisions[decisions["corpus"] == "harmful"]
    assert len(own) >= 9 * len(harmful) and own["response"].isna().all()
    assert set(own["prompt_id"]) == set(harmful["prompt_id"])
    assert not set(read(dataset, "annotations")["prompt_id"]) & set(
        harmful["prompt_id"]
    )


@pytest.mark.slow
def test_the_card_and_croissant_describe_every_file_and_column(dataset):
    card = DatasetCard((dataset / "README.md").read_text(encoding="utf-8"))
    configs = {
        one["config_name"]: one["data_files"][0]["path"]
        for one in card.data.to_dict()["configs"]
    }
    files = {
        path.relative_to(dataset).as_posix() for path in dataset.rglob("*.parquet")
    }
    assert (
        set(configs.values()) == files
        and "<!--=" not in card.text
        and "Content warning" in card.text
    )
    told = set(re.findall(r"`(\w+)`", card.text))
    import mlcroissant  # imports torch

    described = mlcroissant.Dataset(jsonld=dataset / "croissant.json")
    assert not described.metadata.issues.errors
    for name in configs:
        first = next(iter(described.records(name)))
        assert [column.partition("/")[2] for column in first] == list(
            read(dataset, name)
        )
        assert name in told and (
            name == "annotations" or set(read(dataset, name)) - {"cluster_id"} <= told
        )


@pytest.mark.slow
def test_the_hub_s_library_loads_every_part(dataset):
    datasets = pytest.importorskip("datasets")
    for name in ("harmless", "harmful", "decisions", "annotations"):
        loaded = datasets.load_dataset(str(dataset), name, split="test")
        pd.testing.assert_frame_equal(
            loaded.to_pandas(), read(dataset, name), check_dtype=False
        )


def test_the_task_names_columns_of_the_requests():
    (task,) = yaml.safe_load(
        (paths.ROOT / "hub" / "eval.yaml").read_text(encoding="utf-8")
    )["tasks"]
    fields = task["field_spec"]
    assert {fields["input"], *fields["metadata"]} <= set(build.REQUESTS) and task[
        "split"
    ] == "test"


@pytest.mark.slow
def test_inspect_reads_the_task(dataset, monkeypatch):
    hub = pytest.importorskip("inspect_ai._eval.task.hf")
    import huggingface_hub

    load = hub.hf_dataset
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda **_: str(dataset / "eval.yaml")
    )
    monkeypatch.setattr(
        hub, "hf_dataset", lambda path, revision, **given: load(str(dataset), **given)
    )
    (task,) = hub.task_create_from_hf("hf/ORG/paraguard")
    assert (
        len(task.dataset) == 1200
        and task.dataset[0].metadata["cluster_id"] == "deception-01"
    )
