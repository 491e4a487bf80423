"""The scratchpad of a core while an attention that is written out runs: what lies where, from step to step."""

from docs.pictures.drawing import Drawing
from docs.pictures.planned import planned

SIZE = (512, 64)


def attention(q, k, v):  # type: ignore[no-untyped-def]
    import torch

    scores = (q @ k.transpose(-1, -2)) * 0.125
    return torch.softmax(scores, -1) @ v


def draw() -> Drawing:
    kernel = planned(attention, SIZE, SIZE, SIZE)
    steps = kernel["steps"]
    held = [buffer for buffer in kernel["buffers"] if buffer["place"] == "lx"]
    most = max(buffer["address"] + buffer["core_bytes"] for buffer in held)
    left, top, width, height = 110, 50, 96, 220
    picture = Drawing(left + width * len(steps) + 20, 360, "The scratchpad of a core over the steps of a kernel")
    picture.text(
        20,
        28,
        "LX of one core, step by step: softmax(q @ kᵀ · 0.125) @ v, 512 x 64, one kernel",
        anchor="start",
        bold=True,
    )
    scale = height / most
    for i, buffer in enumerate(held):
        x = left + width * (buffer["first"] + 0.5)
        y = top + height - scale * (buffer["address"] + buffer["core_bytes"])
        tall = max(scale * buffer["core_bytes"], 14)
        fill = ("blue", "green", "violet")[i % 3]
        shape = " x ".join(map(str, buffer["size"]))
        name = "\n".join(steps[buffer["first"]]["op"].split()) + "\n" if tall > 60 else ""
        picture.box(x, y, width * (buffer["last"] - buffer["first"]), tall, fill, name + shape, small=True)
    for i, step in enumerate(steps):
        x = left + width * (i + 0.5)
        picture.line([(x, top), (x, top + height)], dashed=True)
        picture.text(x, top + height + 20, f"{i}: {step['op']}", small=True)
        picture.text(x, top + height + 36, f"{step['us']:.2f} us", small=True)
    picture.line([(left, top), (left, top + height), (left + width * len(steps), top + height)])
    picture.text(left - 6, top + 12, f"{most} B", anchor="end", small=True)
    picture.text(left - 6, top + height, "0", anchor="end", small=True)
    notes = (
        "Boxes are results, from the step that writes them to the last that reads them; one may overwrite another",
        "that is read for the last time. Between the two products nothing goes through device memory.",
    )
    for i, note in enumerate(notes):
        picture.text(left, top + height + 62 + 16 * i, note, anchor="start", small=True)
    return picture
