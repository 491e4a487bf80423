"""PyTorch's own samples of ops, on DTensors: every placement of the tensors of a sample."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .dtensor_programs import mesh_of

# fmt: off
NAMES = (
    "mm", "bmm", "addmm", "matmul", "nn.functional.linear", "nn.functional.scaled_dot_product_attention", "add",
    "sub", "mul", "div", "pow", "neg", "exp", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "clamp",
    "where", "logical_and", "bitwise_and", "masked_fill", "nn.functional.silu", "nn.functional.gelu",
    "nn.functional.softplus", "softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.rms_norm",
    "sum", "mean", "amax", "max", "argmax", "cumsum", "topk", "nn.functional.embedding", "index_select",
    "gather", "index_put", "cat", "split", "chunk", "slice", "transpose", "t", "view", "reshape", "permute",
    "unsqueeze", "squeeze", "expand", "nn.functional.pad",
)
# fmt: on
SAMPLES, PLACEMENTS = 12, 12
# What PyTorch says where it has no way to divide an op, whatever the device.
UNDIVIDED = ("does not have a sharding strategy", "Sharding propagation failed")
# Handled by PyTorch in Python, which takes an empty shard for the whole.
WRONG_IN_PYTORCH = {"argmax": "is invalid for input of size"}


def run(name: str) -> tuple[int, int, list[str]]:
    """How many placements gave what whole tensors give, how many PyTorch does not divide, and what went wrong."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter

    op = next(each for each in op_db if each.name == name)
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    mesh, good, undivided, wrong = mesh_of(), 0, 0, []
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
        if sample.kwargs.get("dropout_p"):
            continue  # no two draws are alike
        args, kwargs = tree_map(_on_card, ((sample.input, *sample.args), sample.kwargs))
        expected = op.op(*args, **kwargs)
        converter = DTensorConverter(mesh, args, kwargs)
        for parts, options in itertools.islice(converter, PLACEMENTS):
            if not converter.successful():
                continue
            try:
                found = op.op(*parts, **options)
            except Exception as error:
                if any(reason in str(error) for reason in UNDIVIDED):
                    undivided += 1
                elif WRONG_IN_PYTORCH.get(name, "?") not in str(error):
                    wrong.append(f"{error!r} {_placements(parts)}")
                continue
            if _same(found, expected):
                good += 1
            else:
                wrong.append(f"other values {_placements(parts)}")
    return good, undivided, wrong


def _on_card(value: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of int64
        return value.to("spyre") if isinstance(value, torch.Tensor) else value


def _placements(parts: Any) -> str:
    return str([part.placements for part in tree_leaves(parts) if isinstance(part, torch.Tensor)])


def _same(found: Any, expected: Any) -> bool:
    """Within the roundings of sums of at most 2^4 numbers in fp32, which parts are added to in another order."""
    for part, whole in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        part = part.full_tensor().cpu() if hasattr(part, "full_tensor") else part.cpu()
        whole = whole.cpu()
        if part.shape != whole.shape or part.dtype != whole.dtype:
            return False
        if not whole.is_floating_point():
            if not torch.equal(part, whole):
                return False
        elif not torch.equal(part.isfinite(), whole.isfinite()):
            return False
        else:
            kept = whole.isfinite()
            difference = (part[kept].double() - whole[kept].double()).norm()
            if difference > 2**-20 * whole[kept].double().norm():
                return False
    return True
