"""What holds for all tests: one thread, and stderr is no result.

Equal bits need one thread; progress bars and warnings vary.
"""

import os

# Beside a busy process the engine gives threads up, and their number decides the last
# digits of what a model says.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collectstart(collector):
    """Leave stderr out of nbval's comparison."""
    if collector.path.suffix == ".ipynb":
        collector.skip_compare += ("stderr",)
