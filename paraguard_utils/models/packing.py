"""Linear layers with weights laid out once for the CPU's matrix kernels.

PyTorch reorders a weight on every call; for the small products of decoding that costs more than the product. oneDNN's
operators take a weight that was reordered once. They are private, so they are used only with the torch release they
were tested with; any other keeps the plain layers, slower and with the same results up to rounding.
"""

import torch
from torch import nn

TESTED = "2.13."
ROWS = 64
"""Rows the layout is chosen for; it serves decoding batches from 16 to 512 rows equally well."""


class PackedLinear(nn.Module):
    """An `nn.Linear` for inference.

    Parameters
    ----------
    linear : torch.nn.Linear
        On the CPU; its weight is not kept.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs @ weight.T + bias."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")


def has_bfloat16_units() -> bool:
    """Return whether the processor multiplies bfloat16 itself; one with AVX2 alone does not."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack(network: nn.Module) -> bool:
    """Replace every plain linear layer of a network on the CPU; leave the network alone where that is not safe.

    What is left is copied out of the files it was mapped from: one tensor would keep a whole file in memory.

    Parameters
    ----------
    network : torch.nn.Module
        Changed in place; for inference only afterwards.

    Returns
    -------
    bool
        Whether layers were replaced.
    """
    if not torch.__version__.startswith(TESTED) or not torch.backends.mkldnn.is_available():
        return False
    known = {torch.float32}
    if has_bfloat16_units():
        known.add(torch.bfloat16)
    if any(p.device.type != "cpu" or p.dtype not in known for p in network.parameters()):
        return False
    plain = {name: module for name, module in network.named_modules() if type(module) is nn.Linear}
    for module in network.modules():
        if type(module) is not nn.Linear:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.clone()
    while plain:  # a layer is free as soon as it is packed
        name, linear = plain.popitem()
        network.set_submodule(name, PackedLinear(linear))
    return True
