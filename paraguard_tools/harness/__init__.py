"""ParaGuard in pytest, Inspect and lm-evaluation-harness (`docs/usage.md`)."""

from pathlib import Path

# The folder of the task of lm-evaluation-harness, for its `--include_path`
LM_EVAL = Path(__file__).parent / "lm_eval"
