"""nbval compares stored and new outputs; progress bars and warnings on stderr are no results."""


def pytest_collectstart(collector):
    """Leave stderr out of nbval's comparison."""
    if collector.path.suffix == ".ipynb":
        collector.skip_compare += ("stderr",)
