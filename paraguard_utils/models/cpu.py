"""Run a model on the CPU: as many threads as there are free cores, and weights laid out
once for the matrix kernels.

Matrix products are shared out evenly, and all threads wait for the last one, spinning:
a thread that shares its core with another process slows all of them. The number of
threads changes the last digits of numbers at most, the seventh of a log-probability on
one machine. PyTorch reorders a weight on every call, which costs more than the small
products of decoding. oneDNN's operators take a weight that was reordered once; they are
private, so we use them only with the torch release that we tested. Any other release
keeps the plain layers, which are slower and equal up to rounding.
"""

import os
import time
from typing import Self

import psutil
import torch
from torch import nn

_TESTED_TORCH = "2.13."  # the torch release whose private operators we tested
_LOOK_SECONDS = (
    1.0  # between two looks at the machine: processor times are counted in hundredths
)
# Rows that the layout is chosen for; it serves decoding batches of 16 to 512 rows
# equally well
_LAYOUT_ROWS = 64
_SPARE_CORE = (
    0.25  # share of a core that others may take: below it, two threads still beat one
)


def count_free_threads(used: float, idle: float, most: int) -> int:
    """Return how many of `most` threads find a core: this process keeps `used` cores
    busy, and `idle` nobody.
    """
    return max(1, min(most, int(used + idle + _SPARE_CORE)))


class FittedThreads:
    """Torch's threads, fitted inside a `with` block to the cores that other processes
    leave; only on the CPU.
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
        """Look at the machine, at most once in `_LOOK_SECONDS` seconds, and use more or
        fewer threads from now on.
        """
        if self.most == 1 or time.monotonic() - self.seen[0] < _LOOK_SECONDS:
            return
        before, self.seen = self.seen, _seen()
        seconds, used, idle, counted = (
            new - old for new, old in zip(self.seen, before, strict=True)
        )
        # Some containers count no idle time, or that of other cores: then we know
        # nothing and give up nothing.
        known = counted > 0.5 * seconds * self.most
        self.now = (
            count_free_threads(used / seconds, idle / seconds, self.most)
            if known
            else self.most
        )
        self._set(self.now)

    def _set(self, threads: int) -> None:
        if self.most > 1 and threads != torch.get_num_threads():
            torch.set_num_threads(threads)


def _seen() -> tuple[float, float, float, float]:
    """Return four times in seconds: wall clock, this process's, and idle and total of
    the cores that it may use.
    """
    times = psutil.cpu_times(percpu=True)
    cores = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else range(len(times))
    )
    own = [times[core] for core in cores if core < len(times)]
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in own)
    return time.monotonic(), time.process_time(), idle, sum(map(sum, own))


class PackedLinear(nn.Module):
    """An `nn.Linear` on the CPU for inference, whose own weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(
            linear.weight.detach(), _LAYOUT_ROWS
        )
        self.bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs @ weight.T + bias."""
        return torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self.bias, "none", [], ""
        )


def has_bfloat16_units() -> bool:
    """Return whether the processor multiplies bfloat16 itself.

    One with AVX2 alone does not.
    """
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linear_layers(network: nn.Module) -> bool:
    """Replace every plain linear layer of a network on the CPU, for inference only.

    Return whether that was safe.
    """
    if (
        not torch.__version__.startswith(_TESTED_TORCH)
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    known = {torch.float32, torch.bfloat16} if has_bfloat16_units() else {torch.float32}
    if any(
        p.device.type != "cpu" or p.dtype not in known for p in network.parameters()
    ):
        return False
    plain = {
        name: module
        for name, module in network.named_modules()
        if type(module) is nn.Linear
    }
    # Other parameters leave the files that they were mapped from: one tensor would keep
    # a whole file in memory.
    for module in network.modules():
        if type(module) is not nn.Linear:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.clone()
    while plain:  # a layer is free as soon as it is packed
        name, linear = plain.popitem()
        network.set_submodule(name, PackedLinear(linear))
    return True
