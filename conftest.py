"""What holds for all tests: one thread, no PDF, and stderr is no result.

Equal bits need one thread; progress bars and warnings vary. Notebooks show no PDF of
their figures: where PARAGUARD_WEEKLY is not set, only tests of PDFs and of documented
commands write them.
"""

import os

# The number of threads decides the last digits of what a model says, and two threads of
# two workers wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if not os.environ.get("PARAGUARD_WEEKLY"):
    os.environ.setdefault("PARAGUARD_NO_PDF", "1")


def pytest_collectstart(collector):
    """Leave stderr out of nbval's comparison."""
    if collector.path.suffix == ".ipynb":
        collector.skip_compare += ("stderr",)
