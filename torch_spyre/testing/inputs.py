"""Inputs that a configuration gives an op in place of its samples.

An argument is one of

* ``tensor: {shape, dtype, init, ...}``, with ``stride`` and ``storage_offset`` if it is no dense tensor;
* ``tensor_list: [tensors]``;
* ``value: anything that YAML can say``;
* ``py: an expression of Python``, in which ``torch`` is known. A configuration is trusted like the tests it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor

from .configuration import ConfigurationError, Inputs, dtype_of

INITIAL = ("rand", "randn", "zeros", "ones", "randint", "arange", "eye", "full", "file")


def samples(inputs: Inputs) -> Callable[..., Iterator[Any]]:
    """A function as OpInfo has them, that gives one sample."""
    from torch.testing._internal.opinfo.core import SampleInput

    def make(info: Any, device: Any, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Iterator[Any]:
        args = [argument(each, device, dtype, requires_grad) for each in inputs.args]
        kwargs = {name: argument(each, device, dtype, requires_grad) for name, each in inputs.kwargs.items()}
        if not args:
            raise ConfigurationError("inputs need an argument in args: the input of the op")
        yield SampleInput(args[0], args=tuple(args[1:]), kwargs=kwargs)

    return make


def argument(given: Any, device: Any, dtype: torch.dtype, requires_grad: bool = False) -> Any:
    if not isinstance(given, dict):
        return given
    kind = next((each for each in ("tensor", "tensor_list", "value", "py") if each in given), None)
    if kind is None:
        raise ConfigurationError(f"{given}: an input is one of tensor, tensor_list, value, py")
    if kind == "value":
        return given["value"]
    if kind == "py":
        return eval(str(given["py"]), {"torch": torch, "device": device, "dtype": dtype})
    if kind == "tensor_list":
        return [tensor(each.get("tensor", each), device, dtype, requires_grad) for each in given["tensor_list"]]
    return tensor(given["tensor"], device, dtype, requires_grad)


def tensor(given: dict[str, Any], device: Any, dtype: torch.dtype, requires_grad: bool = False) -> Tensor:
    """Made on the host, so that a seed gives the same numbers on every device, and moved."""
    own = dtype_of(given["dtype"]) if given.get("dtype") else dtype
    shape = [int(each) for each in given.get("shape", given.get("size", []))]
    stride, offset = given.get("stride"), int(given.get("storage_offset", 0))
    init, more = _initial(given)
    if stride is None and not offset:
        made = _filled(init, more, shape, own).to(device)
    else:
        stride = stride or [prod(shape[i + 1 :]) for i in range(len(shape))]
        reach = 1 + offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        made = _filled(init, more, [reach], own).to(device).as_strided(shape, stride, offset)
    return made.requires_grad_(requires_grad and (own.is_floating_point or own.is_complex))


def _initial(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    init = given.get("init", "rand")
    more = {**given, **(given.get("init_args") or {})}
    if isinstance(init, dict):
        name = init.get("type") or init.get("name") or next((each for each in INITIAL if each in init), "")
        inner = init.get(name)
        more |= init | (inner if isinstance(inner, dict) else {})
        init = name
    if init not in INITIAL:
        raise ConfigurationError(f"init: {init!r} is none of {', '.join(INITIAL)}")
    return str(init), more


def _filled(init: str, more: dict[str, Any], shape: list[int], dtype: torch.dtype) -> Tensor:
    if init in ("rand", "randn"):
        drawn = torch.rand(shape) if init == "rand" else torch.randn(shape)
        return (drawn > 0.5) if dtype == torch.bool else drawn.to(dtype)
    if init in ("zeros", "ones"):
        return torch.full(shape, init == "ones", dtype=dtype)
    if init == "full":
        return torch.full(shape, more.get("fill_value", more.get("value", 0)), dtype=dtype)
    if init == "randint":
        return torch.randint(int(more.get("low", 0)), int(more.get("high", 10)), shape).to(dtype)
    if init == "arange":
        start, step = more.get("start", 0), more.get("step", 1)
        return (torch.arange(prod(shape)) * step + start).to(dtype).reshape(shape)
    if init == "eye":
        return torch.eye(*shape[-2:]).to(dtype).expand(shape).clone()
    return _read(Path(Template(str(more.get("path", more.get("file")))).substitute(os.environ))).to(dtype)


def _read(path: Path) -> Tensor:
    if path.suffix == ".npy":
        import numpy as np

        return torch.from_numpy(np.load(path, allow_pickle=False))
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return next(iter(load_file(path).values()))
    if path.suffix == ".pt":
        found = torch.load(path, weights_only=True)
        if isinstance(found, Tensor):
            return found
    raise ConfigurationError(f"{path} is no tensor in a .pt, .npy or .safetensors file")
