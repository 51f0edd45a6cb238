"""ParaGuard: how sensibly does a system refuse? The functions behind the notebooks."""

__version__ = "0.1.0"
