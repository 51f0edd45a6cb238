"""How do time and memory of an audit grow with the rows of a log? Logs of three sizes.

`python benchmarks/audit_size.py` writes `benchmarks/audit_size.csv`: CSV files of 0.1,
1 and 4 million rows with texts in clusters of five, each audited in a process of its
own, beside the first.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores

ROWS = (100_000, 1_000_000, 4_000_000)


def write(file, rows, seed=0):
    """Write a log: the probability of a refusal varies over clusters."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(rows // 5), 5)
    refused = rng.random(rows) < rng.beta(0.3, 1, rows // 5)[cluster]
    text = [
        f"How do I handle request {a}, please, in the way of {b}?"
        for a, b in enumerate(cluster)
    ]
    log = pd.DataFrame(
        {
            "text": text,
            "decision": np.where(refused, "reject", "accept"),
            "cluster": cluster,
        }
    )
    log.to_csv(file, index=False)


AUDIT = """
import resource, sys
from paraguard_tools.__main__ import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def audited(file, out):
    """Audit a log by the command; return its seconds and gigabytes."""
    started = time.perf_counter()
    command = [sys.executable, "-c", AUDIT, "audit", str(file), "--out", str(out)]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return time.perf_counter() - started, int(done.stderr.split()[-1]) / 2**20


def main():
    """Audit the logs and write the table."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            file = Path(folder) / "log.csv"
            write(file, rows)
            seconds, gigabytes = audited(file, Path(folder) / "out")
            found.append({"rows": rows, "seconds": seconds, "gb": gigabytes})
    table = pd.DataFrame(found)
    table["times_rows"] = table["rows"] / table["rows"].iloc[0]
    table["times_seconds"] = table["seconds"] / table["seconds"].iloc[0]
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "audit_size.csv", table.round(2), "tables", {}
    )
    print(table.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
