"""Are answers labelled on another device as on the recorded one? Counts labels that
differ.

`python benchmarks/devices.py STORE` compares every labels file of a live store that was
asked of the same prompts as the record's, but elsewhere (a GPU, another processor), and
writes `benchmarks/devices.csv`.
"""

import sys
from pathlib import Path

import pandas as pd

from paraguard_utils import stores


def main(name):
    """Compare labels of the store with recorded ones, file by file."""
    live, recorded, rows = stores.Store(name), stores.Store(stores.RECORDED), []
    for path in sorted((live.writes / "labels").glob("*/*.csv")):
        of, system = path.parent.name, path.stem
        metas = [
            stores.read_meta(store.path("labels", of, system))
            for store in (live, recorded)
        ]
        if metas[0].get("device") == metas[1].get("device") or metas[0].get(
            "inputs"
        ) != metas[1].get("inputs"):
            continue  # asked of other prompts, or by the same device
        here, there = (
            store.read("labels", of, system).set_index("prompt_id")
            for store in (live, recorded)
        )
        same = here["label"].eq(there["label"].reindex(here.index))
        about = {
            "corpus": of,
            "system": system,
            "device": metas[0]["device"],
            "recorded": metas[1]["device"],
        }
        rows.append(
            about
            | {
                "dtype": metas[0]["dtype"],
                "answers": len(here),
                "same_label": int(same.sum()),
            }
        )
    table = pd.DataFrame(rows)
    stores.write_file(
        Path(__file__).with_suffix(".csv"), table, "tables", {"store": name}
    )
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
