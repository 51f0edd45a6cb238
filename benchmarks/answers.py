"""Compare labels of answers in people's logs with known ones.

`python benchmarks/answers.py SHARED` reads labelled answers in a folder SHARED that is
not part of the repository: `data/languages/` (French answers with `is_refused`, Chinese
ones with `compliance`) and `data/xstest/` (completions with `final_label`). It writes
`benchmarks/answers.csv`, which holds counts and rates and no text: agreement by file
and half, and how many recorded answers the steps beyond the frozen list relabel.

The French list was written after a look at the rows with even numbers (`developed`);
the others were held out. All Chinese answers had been looked at (`seen`).
"""

import json
import sys
from pathlib import Path

import pandas as pd
from sklearn.metrics import cohen_kappa_score

from paraguard_tools.answers import labelling
from paraguard_utils import paths, stores
from paraguard_utils.labels import refusals

REFUSED = ["reject", "blocked"]


def read_french(folder):
    """Return answers and whether each refuses; errors have no decision."""
    rows = pd.read_csv(folder / "languages" / "fr_llama3.1.csv")
    rows = rows[~rows["is_error"]]
    return rows["answer"], rows["is_refused"]


def read_chinese(folder):
    """Return answers and whether each is a denial.

    Answers that a filter stopped have no text; an evasive answer is left out, because
    it neither refuses nor complies.
    """
    answers, refused = [], []
    with (folder / "languages" / "zh_qwen-max.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            choices = row["response"].get("choices", [{}])
            text = choices[0].get("message", {}).get("content")
            if row["compliance"] in ("DENIAL", "COMPLETE") and text:
                answers.append(text)
                refused.append(row["compliance"] == "DENIAL")
    return pd.Series(answers), pd.Series(refused)


def read_xstest(folder, model):
    """Return a model's completions and whether each refuses, in full or in part."""
    rows = pd.read_csv(folder / "xstest" / f"xstest_v2_completions_{model}.csv")
    return rows["completion"], rows["final_label"].ne("1_full_compliance")


def agree(name, half, answers, refused, labels):
    """Return a row of agreement: counts of the four cases, and kappa."""
    found = labels.isin(REFUSED)
    return {
        "file": name,
        "rows": half,
        "n": len(answers),
        "refused": int(refused.sum()),
        "found": int((found & refused).sum()),
        "false": int((found & ~refused).sum()),
        "unparsed": int(labels.eq("unparsed").sum()),
        "kappa": cohen_kappa_score(refused, found),
    }


def label(answers):
    """Label answers by the cue lists and edges."""
    frame = pd.DataFrame({"answer": answers}, dtype=object)
    return labelling.label_logs_by_cues(frame)["label"]


def count_relabelled():
    """Return rows on the recorded answers that the steps beyond the list relabel."""
    texts = []
    for kind in ("labels", "answers"):
        for file in sorted((paths.DATA / kind).glob("**/*.csv")):
            rows = pd.read_csv(file, dtype=str)
            if "response" in rows:
                texts.append(rows["response"].dropna())
    every = pd.concat(texts)
    unique = every.drop_duplicates().reset_index(drop=True)
    frozen = refusals.label_by_cues(unique, [None] * len(unique))["label"]
    found = labelling.label_logs_by_cues(pd.DataFrame({"answer": unique}, dtype=object))
    changed = frozen.ne(found["label"])
    rules = found["rule"].where(found["kind"] != "language", "language")
    n_answers = every.map(every.value_counts()).groupby(every).first()
    rows = [{"file": "recorded", "rows": "all", "n": len(every)}]
    rows[0] |= {"unique": len(unique), "relabelled": int(changed.sum())}
    rows[0]["relabelled_rows"] = int(n_answers[unique[changed]].sum())
    for rule, own in unique[changed].groupby(rules[changed]):
        about = {"file": "recorded", "rows": rule, "relabelled": len(own)}
        rows.append(about | {"relabelled_rows": int(n_answers[own].sum())})
    return rows


def main(shared):
    """Write the table."""
    folder = Path(shared) / "data"
    files = {
        "French, Llama 3.1": read_french(folder),
        "Chinese, Qwen-Max": read_chinese(folder),
        "XSTest, GPT-4": read_xstest(folder, "gpt4"),
        "XSTest, Llama 2": read_xstest(folder, "llama2orig"),
    }
    rows = []
    for name, (answers, refused) in files.items():
        labels = label(answers)
        if name.startswith("XSTest"):
            frozen = refusals.label_by_cues(answers, [None] * len(answers))["label"]
            rows.append(agree(name, "frozen list", answers, refused, frozen))
            rows.append(agree(name, "all", answers, refused, labels))
            continue
        labels.index = answers.index
        if name.startswith("Chinese"):
            rows.append(agree(name, "seen", answers, refused, labels))
            continue
        for parity, half in ((0, "developed"), (1, "held out")):
            part = answers.index % 2 == parity
            rows.append(agree(name, half, answers[part], refused[part], labels[part]))
    table = pd.DataFrame(rows + count_relabelled())
    path = Path(__file__).with_suffix(".csv")
    stores.write_file(path, table, "tables", {})
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
