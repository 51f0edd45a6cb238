"""Fit torch's threads to the cores of the CPU that other processes leave.

Matrix products are shared out evenly, and all threads wait for the last one, spinning:
a thread that shares its core with another process slows all of them. The number of
threads changes the last digits of numbers at most, the seventh of a log-probability on
one machine.
"""

import os
import time
from typing import NamedTuple, Self

import psutil
import torch

# Seconds between two looks at the machine: processor times are counted in hundredths
_LOOK_SECONDS = 1.0
# The share of a core that others may take: below it, two threads still beat one
_SPARE_CORE = 0.25


class ProcessorTimes(NamedTuple):
    """Times in seconds: the wall clock's, this process's and the cores'.

    `idle` and `total` are times of the cores that the process may use.
    """

    clock: float
    process: float
    idle: float
    total: float


def count_free_threads(used: float, idle: float, most: int) -> int:
    """Return how many of `most` threads find a core.

    This process keeps `used` cores busy, and nobody `idle` ones.
    """
    free = int(used + idle + _SPARE_CORE)
    return max(1, min(most, free))


def read_processor_times() -> ProcessorTimes:
    """Return the times of this process and of its cores until now."""
    every_core = psutil.cpu_times(percpu=True)
    numbers = list(range(len(every_core)))
    if hasattr(os, "sched_getaffinity"):
        numbers = [n for n in numbers if n in os.sched_getaffinity(0)]
    idle = 0.0
    total = 0.0
    for number in numbers:
        core = every_core[number]
        idle += core.idle + getattr(core, "iowait", 0.0)
        total += sum(core)
    return ProcessorTimes(time.monotonic(), time.process_time(), idle, total)


class FittedThreads:
    """Torch's threads, fitted to the free cores inside a `with` block.

    On another device than the CPU they stay as they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.most = torch.get_num_threads() if device.type == "cpu" else 1
        self.now = self.most
        self.seen = read_processor_times()

    def __enter__(self) -> Self:
        self._set(self.now)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(self.most)

    def fit(self) -> None:
        """Use as many threads as there are free cores from now on.

        The machine is looked at once in `_LOOK_SECONDS` seconds at most.
        """
        if self.most == 1 or time.monotonic() - self.seen.clock < _LOOK_SECONDS:
            return
        before = self.seen
        self.seen = read_processor_times()
        seconds = self.seen.clock - before.clock
        used = (self.seen.process - before.process) / seconds
        idle = (self.seen.idle - before.idle) / seconds
        counted = (self.seen.total - before.total) / seconds
        self.now = self.most
        # Some containers count no idle time, or that of other cores: then we know
        # nothing and give up nothing
        if counted > 0.5 * self.most:
            self.now = count_free_threads(used, idle, self.most)
        self._set(self.now)

    def _set(self, threads: int) -> None:
        if self.most > 1 and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
