"""As many threads as there are cores for them, while a model is asked on the CPU.

Matrix products are shared out evenly and all threads wait for the last one, spinning. So one thread that has to share
its core with another process slows all of them, and with fewer threads than cores nobody waits. The number changes no
result as long as a product is split by rows and columns only, as the kernels here do.
"""

import os
import time
from typing import Self

import psutil
import torch

EVERY = 1.0
"""Seconds between two looks: processor times are counted in hundredths."""

SPARE = 0.25
"""Share of a core that others may take before a thread is given up: below it, two threads still beat one."""


def fitting(used: float, idle: float, most: int) -> int:
    """Return how many threads find a core each: what this process had and what nobody had, in whole cores.

    Parameters
    ----------
    used : float
        Cores that this process kept busy on average, >= 0.
    idle : float
        Cores that were idle on average, >= 0.
    most : int
        Threads on an idle machine, >= 1.

    Returns
    -------
    int, 1 to `most`
    """
    return max(1, min(most, int(used + idle + SPARE)))


class Threads:
    """Torch's threads, fitted to the cores that other processes leave, inside a `with` block.

    Parameters
    ----------
    device : torch.device
        Other devices than the CPU are left alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.most = torch.get_num_threads() if device.type == "cpu" else 1
        self.now = self.most
        self.seen = _seen()

    def __enter__(self) -> Self:
        self._set(self.now)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self.most)

    def fit(self) -> None:
        """Look at the machine, at most once in `EVERY` seconds, and use more or fewer threads from now on."""
        if self.most == 1 or time.monotonic() - self.seen[0] < EVERY:
            return
        before, self.seen = self.seen, _seen()
        seconds, used, idle, counted = (new - old for new, old in zip(self.seen, before, strict=True))
        # Some containers count no idle time, or that of other cores: then nothing is known, and nothing given up.
        known = counted > 0.5 * seconds * self.most
        self.now = fitting(used / seconds, idle / seconds, self.most) if known else self.most
        self._set(self.now)

    def _set(self, threads: int) -> None:
        if self.most > 1 and threads != torch.get_num_threads():
            torch.set_num_threads(threads)


def _seen() -> tuple[float, float, float, float]:
    """Return four clocks in seconds: the wall's, this process's, and idle and all time of the cores it may use."""
    times = psutil.cpu_times(percpu=True)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    own = [times[core] for core in cores if core < len(times)]
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in own)
    return time.monotonic(), time.process_time(), idle, sum(map(sum, own))
