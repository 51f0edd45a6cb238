"""Write the sheets of two blind readers, of answers whose text was never kept.

`python benchmarks/blind_sheets.py KEY.csv` queries 200 answers again on the processor
(`labels.blind`) and writes `sheet_a.jsonl` and `sheet_b.jsonl`, the same items in two
orders, into `/dev/shm/read`, which is memory. Answers to harmful twins are among them:
remove the folder when they are read. `KEY.csv` says what the items are, without text.
"""

import sys
from pathlib import Path

from paraguard_lab.labels import blind
from paraguard_utils.core.estimates import SEED
from paraguard_utils.settings import QueryOptions
from paraguard_utils.stores import RECORDED, Store

SHEETS = Path("/dev/shm/read")  # memory, never a disk


def main() -> None:
    """Draw, query and write."""
    store = Store(RECORDED)
    drawn = blind.draw_unread_answers(blind.list_unread_answers(store))
    answers = blind.query_again(store, drawn, QueryOptions(system_prompts=["none"]))
    sheet, key = blind.shuffle_for_readers(answers)
    key.to_csv(sys.argv[1], index=False)
    SHEETS.mkdir(mode=0o700)
    for reader, seed in (("a", SEED + 1), ("b", SEED + 2)):
        shuffled = sheet.sample(frac=1, random_state=seed)
        path = SHEETS / f"sheet_{reader}.jsonl"
        path.touch(0o600)
        shuffled.to_json(path, orient="records", lines=True, force_ascii=False)
    equal = key["label"] == key["label_again"]
    print(equal.groupby(key["kind"]).agg(["sum", "size"]))


if __name__ == "__main__":
    main()
