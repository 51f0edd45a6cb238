"""ParaGuard where people already evaluate: pytest, Inspect, lm-evaluation-harness
(`docs/usage.md`).
"""

from pathlib import Path

LM_EVAL = (
    Path(__file__).parent / "lm_eval"
)  # folder of the task of lm-evaluation-harness, for its `--include_path`
