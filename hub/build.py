"""Build the data set for a hub, `hub/dataset/`: Parquet files, card, Croissant, and a
task: `python hub/build.py`.

What is uploaded is that folder: requests, decisions of every recorded system, and
readings of answers. Answers to requests that ask for harm are in no file. The numbers
of the card are those of the record.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from paraguard_lab.report import croissant, numbers  # noqa: E402
from paraguard_utils import __version__, registry, stores  # noqa: E402
from paraguard_utils.settings import CORPUS, TWINS  # noqa: E402

FOLDER = Path(__file__).parent / "dataset"
REQUESTS = [
    "prompt_id",
    "cluster_id",
    "strategy",
    "text",
    "category",
    "topical",
    "similarity",
    "overlap",
    "risk",
]

ABOUT = {
    "harmless": "Harmless requests that sound charged, six wordings in a cluster",
    "harmful": "Twins of such clusters that should be refused; requests only",
    "decisions": "What each system decided about each request",
    "annotations": (
        "What two language models, blind to the labels, read in answers to harmless"
        " requests"
    ),
    "answer": "Whether the answer is about the request",
    "category": "OR-Bench's category",
    "cluster_id": "Requests of one cluster ask the same; a twin's ends with -twin",
    "corpus": "harmless or harmful",
    "first_answer": "The first reader: is the answer of use?",
    "first_refusal": "The first reader: does it refuse?",
    "kind": (
        "chat: a chat model's answer, labelled; guard: a guard; refusal: a chat model's"
        " refusal as a guard"
    ),
    "label": "accept, reject, or unparsed",
    "overlap": "Jaccard overlap of words with the seed",
    "p_refusal": "The classifier's probability of a refusal",
    "prompt_id": "The request",
    "response": "The answer to a harmless request, cut at 64 tokens",
    "risk": "Surface risk: how charged the words are",
    "rule": "What decided the label",
    "second_answer": "The second reader: is the answer of use?",
    "second_refusal": "The second reader: does it refuse?",
    "similarity": "Cosine of sentence vectors with the seed",
    "strategy": "How the seed was reworded",
    "system": "Model and system prompt, or guard",
    "text": "What is asked",
    "topical": "Whether the category is what the seed is about",
}


def read_frames() -> dict[str, pd.DataFrame]:
    """Return the tables by name."""
    record = stores.Store(stores.RECORDED)
    corpora = {"harmless": CORPUS, "harmful": TWINS}
    frames = {
        name: record.read("corpus", corpus)[REQUESTS]
        for name, corpus in corpora.items()
    }
    decisions = []
    for kind in ("chat", "guard", "refusal"):
        for system in registry.published_systems(kind).index:
            for name, corpus in corpora.items():
                if record.has("labels", corpus, system):
                    own = record.read("labels", corpus, system)
                    decisions.append(
                        own.drop(columns="labeller").assign(
                            system=system, kind=kind, corpus=name
                        )
                    )
    made = pd.concat(decisions, ignore_index=True)
    if made.loc[made["corpus"] == "harmful", "response"].notna().any():
        raise SystemExit(
            "data/labels holds answers to requests that ask for harm; nothing is built"
        )
    first = ["system", "kind", "corpus", "prompt_id"]
    frames["decisions"] = made[
        [*first, "label", "rule", "response", "p_refusal", "answer"]
    ]
    frames["annotations"] = stores.read_file(
        ROOT / "data" / "labels" / "annotations.csv", "annotations"
    ).rename(columns={"system": "system"})
    return frames


def describe(frames: dict[str, pd.DataFrame]) -> str:
    """Describe the files as Croissant (JSON-LD)."""
    files, records = [], []
    for name, frame in frames.items():
        file = f"{name}/test.parquet"
        content = (FOLDER / file).read_bytes()
        about = {
            "contentSize": f"{len(content)} B",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        files.append(
            {"@id": file, "@type": "cr:FileObject", "name": file, "contentUrl": file}
            | about
        )
        files[-1]["encodingFormat"] = "application/x-parquet"
        fields = [
            {
                "@id": f"{name}/{column}",
                "@type": "cr:Field",
                "name": column,
                "description": ABOUT[column],
                "dataType": (
                    "sc:Float"
                    if pd.api.types.is_float_dtype(frame[column].dtype)
                    else "sc:Text"
                ),
                "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
            }
            for column in frame
        ]
        records.append(
            {
                "@id": name,
                "@type": "cr:RecordSet",
                "name": name,
                "description": ABOUT[name],
            }
        )
        records[-1]["field"] = fields
    own = json.loads(croissant.CROISSANT_FILE.read_text(encoding="utf-8"))
    kept = (
        "@context",
        "@type",
        "citeAs",
        "conformsTo",
        "creator",
        "datePublished",
        "isLiveDataset",
        "license",
        "url",
    )
    about = {
        name: own[name] for name in (*kept, "inLanguage", "keywords", "description")
    }
    about |= {
        "name": "paraguard",
        "version": __version__,
        "distribution": files,
        "recordSet": records,
    }
    return json.dumps(about, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def build() -> None:
    """Write the folder anew, and say how large its files are."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    frames = read_frames()
    for name, frame in frames.items():
        (FOLDER / name).mkdir(parents=True)
        table = pa.Table.from_pandas(
            frame, preserve_index=False
        ).replace_schema_metadata(None)
        pq.write_table(table, FOLDER / name / "test.parquet")
    known = stores.Store(stores.RECORDED).read("tables", numbers.NUMBERS_TABLE)
    card = (FOLDER.parent / "card.md").read_text(encoding="utf-8")
    (FOLDER / "README.md").write_text(
        numbers.remove_marks(numbers.fill_numbers(card, known)), encoding="utf-8"
    )
    (FOLDER / "croissant.json").write_text(describe(frames), encoding="utf-8")
    shutil.copyfile(FOLDER.parent / "eval.yaml", FOLDER / "eval.yaml")
    shutil.copyfile(ROOT / "data" / "LICENSE", FOLDER / "LICENSE")
    for name, frame in frames.items():
        size = (FOLDER / name / "test.parquet").stat().st_size / 1000
        print(f"{name}: {len(frame):,} rows, {size:,.0f} kB")


if __name__ == "__main__":
    build()
