"""What the page computes, against the card: places of elements, and the cores that touch them."""

import itertools
import json
import random
from math import prod

import pytest
import torch

from tests.explorer.synthetic import model_run
from torch_spyre import _C
from torch_spyre._inductor import spyre_hint
from torch_spyre.explain import explain, explorer
from torch_spyre.explain.watch import watching

SCRIPT = """
(({layout, size, stride}) => {
  const place = explorer.placementOf(layout, size, stride);
  return [...Array(place.elements).keys()].map((device) => explorer.describeElement(place, device).element)
    .map((element, device) => element && [element.hostOffset, element.index,
      explorer.deviceOffsetOf(place, explorer.coordinatesOf(place, element.hostOffset)), device]);
})"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "run.html"
    explorer.write(model_run(1), path)
    browser.open(path)
    return browser


def layouts(seed: int, count: int):
    """Host sizes, strides and layouts: all orders of dimensions, sparse ones, and explicit ones that pad and fold."""
    choose = random.Random(seed)
    for _ in range(count):
        size = [choose.choice([1, 2, 3, 5, 9, 64, 70]) for _ in range(choose.randint(1, 3))]
        stride = list(torch.empty(size, device="meta").stride())
        dtype = choose.choice([torch.float16, torch.float32, torch.int8])
        order = choose.sample(range(len(size)), len(size)) + ([-1] if choose.random() < 0.2 else [])
        yield size, stride, dtype, _C.SpyreTensorLayout(size, stride, dtype, order)
    half = _C.DataFormats.SEN169_FP16
    yield [40, 60], [60, 1], torch.float16, _C.SpyreTensorLayout([38, 64], [64, 1], half)
    yield [5, 100], [100, 1], torch.float16, _C.SpyreTensorLayout([3, 8, 64], [64, 100, 1], half)


def in_memory(size, stride, dtype, layout) -> list[int]:
    """What lies at each device element, for a tensor whose values are their host offsets plus one."""
    host = torch.arange(1, prod(size) + 1).reshape(size)
    elements = prod(layout.device_size)
    flat = _C.SpyreTensorLayout(
        [elements // layout.elems_per_stick(), layout.elems_per_stick()],
        [layout.elems_per_stick(), 1],
        layout.device_dtype,
    )
    digits = []
    for part in (host % 100, host // 100):  # which every format holds exactly
        tensor = _C.spyre_empty_with_layout(size, stride, dtype, layout)
        tensor.copy_(part.to(dtype))
        digits.append(_C.as_strided_with_layout(tensor, [elements], [1], 0, flat).cpu().long())
    return (digits[0] + 100 * digits[1]).tolist()


def test_elements_are_where_the_card_has_them(page):
    for size, stride, dtype, layout in layouts(0, 40):
        memory, said = in_memory(size, stride, dtype, layout), f"{size} as {layout}"
        given = {
            "layout": {"device_size": layout.device_size, "stride_map": layout.stride_map},
            "size": size,
            "stride": stride,
        }
        found = [each for each in page.run(f"{SCRIPT}({json.dumps(given)})") if each]
        assert sorted(offset for offset, *_ in found) == list(range(prod(size))), said
        for offset, index, placed, device in found:
            assert memory[device] == offset + 1, said
            assert placed == device, said
            assert sum(i * s for i, s in zip(index, stride, strict=True)) == offset, said


def mlp(x, gate, up, down):
    return torch.softmax((torch.nn.functional.silu(x @ gate) * (x @ up)) @ down, -1)


def tiled(x, gate, up, down):
    """In tile loops, one in the other."""
    with spyre_hint(named_dims=["M", "N"], num_tiles_per_dim={"M": 3}), spyre_hint(num_tiles_per_dim={"N": 2}):
        hidden = torch.nn.functional.silu(x @ gate) * (x @ up)
    return hidden @ down


@pytest.mark.parametrize("function", [mlp, pytest.param(tiled, marks=pytest.mark.slow)])
def test_cores_touch_what_their_program_says(page, function):
    """Every byte of every operand in device memory, by walking the points of each core."""
    given = [torch.randn(size).half().to("spyre") for size in [(24, 128), (128, 128), (128, 128), (128, 100)]]
    compiled = torch.compile(function)
    run = explain(compiled, *given).data
    with watching() as watched:
        compiled(*given)
    (kernel,) = run["kernels"]
    (program,) = (step["program"]["steps"] for step in watched.launches[0].launch.code["steps"])
    compared = 0
    for step, timed in zip(program, kernel["steps"], strict=True):
        text = run["texts"][kernel["specs"][timed["spec"]]["text"]]
        for operand in step["operands"]:
            for buffer in (kernel["buffers"][i] for i in (*timed["reads"], *timed["writes"])):
                if buffer["place"] == "argument" and buffer["address"] == operand.get("argument"):
                    found = cores_in_page(page, text, buffer, timed.get("iteration", {}))
                    assert found == cores_by_points(step, operand), (step, buffer)
                    compared += 1
    assert compared >= 5
    iterations = [step["iteration"] for step in kernel["steps"] if "iteration" in step]
    assert (len({str(each) for each in iterations}) == 6) == (function is tiled)


def cores_in_page(page, text, buffer, iteration) -> dict[int, list[int]]:
    script = """(({text, layout, size, stride, name, iteration}) => {
      const spec = explorer.parseOpSpec(text, iteration), place = explorer.placementOf(layout, size, stride);
      const tensor = spec.tensors.find((each) => each.places.includes(name)), found = [];
      for (let offset = 0; offset < place.elements; ++offset) {
        const cores = explorer.coresAt(spec, tensor, explorer.coordinatesAt(place, offset));
        if (cores) found.push([offset, cores]);
      }
      return found;
    })"""
    given = {key: buffer[key] for key in ("layout", "size", "stride")} | {
        "text": text,
        "iteration": iteration,
        "name": f"arg{buffer['address']}",
    }
    return {offset: sorted(cores) for offset, cores in page.run(f"{script}({json.dumps(given)})")}


def cores_by_points(step, operand) -> dict[int, list[int]]:
    """By element of the operand. Formats are those of halves, 64 to a stick."""
    sticks = {each["stick"] for each in step["operands"] if each.get("stick", -1) >= 0}
    extents, slices = step["extents"], step["slices"]
    points = [-(-extent // cores) for extent, cores in zip(extents, slices, strict=True)]
    points = [-(-p // 64) * 64 if i in sticks and slices[i] > 1 else p for i, p in enumerate(points)]
    used = [i for i, stride in enumerate(operand["strides"]) if stride or i == operand["stick"]]
    found: dict[int, set[int]] = {}
    others = list(itertools.product(*(range(cores) if i not in used else (0,) for i, cores in enumerate(slices))))
    for point in itertools.product(*(range(extent) if i in used else (0,) for i, extent in enumerate(extents))):
        byte = operand.get("offset", 0)
        for i in used:
            stride = operand["strides"][i]
            byte += point[i] // 64 * stride + point[i] % 64 * 2 if i == operand["stick"] else point[i] * stride
        for other in others:
            core = 0
            for i, cores in enumerate(slices):
                core = core * cores + (point[i] // points[i] if i in used else other[i])
            found.setdefault(byte // 2, set()).add(core)
    return {element: sorted(cores) for element, cores in found.items()}
