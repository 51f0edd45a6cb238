"""Write the sheets of two blind readers, of answers whose text was never kept.

`python benchmarks/blind_sheets.py KEY.csv` queries 200 answers again on the processor
(`labels.blind`) and writes `sheet_a.jsonl` and `sheet_b.jsonl`, the same items in two
orders, into `/dev/shm/read`, which is memory. Answers to harmful twins are among them:
remove the folder when they are read. `KEY.csv` says what the items are, without text.
"""

import sys
from pathlib import Path

import pandas as pd

from paraguard_lab.labels import blind
from paraguard_utils.core.estimates import SEED
from paraguard_utils.stores import RECORDED, Store

SHEETS = Path("/dev/shm/read")  # memory, never a disk


def main() -> None:
    """Draw, query and write."""
    store = Store(RECORDED)
    drawn = blind.draw_unread_answers(blind.list_unread_answers(store))
    SHEETS.mkdir(mode=0o700, exist_ok=True)
    parts = []
    for model, rows in drawn.groupby(drawn["system"].str.rpartition("--")[0]):
        part = SHEETS / f"{model}.pickle"  # what a killed run need not query again
        if not part.is_file():
            blind.query_again(store, rows).to_pickle(part)
        parts.append(pd.read_pickle(part))
        print(model, len(rows), flush=True)
    answers = pd.concat(parts).loc[drawn.index]
    sheet, key = blind.shuffle_for_readers(answers)
    key.to_csv(sys.argv[1], index=False)
    for reader, seed in (("a", SEED + 1), ("b", SEED + 2)):
        shuffled = sheet.sample(frac=1, random_state=seed)
        path = SHEETS / f"sheet_{reader}.jsonl"
        shuffled.to_json(path, orient="records", lines=True, force_ascii=False)
    for part in SHEETS.glob("*.pickle"):
        part.unlink()
    equal = key["label"] == key["label_again"]
    print(equal.groupby(key["kind"]).agg(["sum", "size"]))


if __name__ == "__main__":
    main()
