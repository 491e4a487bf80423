"""Sticks and tiles of a [5, 10, 200] tensor, from the layout that the device gives it."""

from docs.pictures.drawing import Drawing
from torch_spyre import _C

HOST = [5, 10, 200]


def draw() -> Drawing:
    import torch

    layout = _C.SpyreTensorLayout(HOST, torch.float16)
    between, tiles, rows, lanes = layout.device_size  # the middle dimension, tiles of the last, the first, a stick
    picture = Drawing(860, 470, f"A float16 tensor of {HOST} in sticks")
    picture.text(20, 28, f"the program's view: {HOST}, row-major", anchor="start", bold=True)
    left, top, cell = 20, 46, 3.0
    for block in range(HOST[0]):
        x, y = left + 10 * block, top + 14 * block
        picture.box(x, y, 200, 34, "grey", f"x[{block}, :, :]   10 rows of 200" if block == HOST[0] - 1 else "")
    y = top + 132
    picture.text(20, y, "one row, x[3, 7, :], in sticks of 64 elements = 128 bytes", anchor="start", bold=True)
    x = 20.0
    for stick in range(tiles):
        used = min(lanes, HOST[2] - stick * lanes)
        picture.box(
            x, y + 14, used * cell, 34, "blue", f"{stick * lanes} … {stick * lanes + used - 1}" if used > 20 else ""
        )
        if used < lanes:
            picture.box(x + used * cell, y + 14, (lanes - used) * cell, 34, "red", "padding")
        x += lanes * cell + 12
    y += 92
    picture.text(
        20,
        y,
        f"on the card: device_size {list(layout.device_size)}, stride_map {list(layout.stride_map)}",
        anchor="start",
        bold=True,
    )
    picture.text(
        20,
        y + 20,
        f"each of {between} middle indices and {tiles} tiles of columns has {rows} sticks, one for each first index",
        anchor="start",
        small=True,
    )
    for tile in range(tiles):
        x = 20 + tile * 205
        picture.text(x + 90, y + 46, f"x[:, 7, {tile * lanes} … {min((tile + 1) * lanes, HOST[2]) - 1}]", small=True)
        for row in range(rows):
            used = min(lanes, HOST[2] - tile * lanes)
            width = 180.0
            picture.box(
                x,
                y + 54 + row * 22,
                width * used / lanes,
                20,
                "blue",
                f"x[{row}, 7, …]" if used == lanes else "",
                small=True,
            )
            if used < lanes:
                picture.box(
                    x + width * used / lanes,
                    y + 54 + row * 22,
                    width * (1 - used / lanes),
                    20,
                    "red",
                    "padding",
                    small=True,
                )
    picture.line([(20, y + 178), (825, y + 178)], arrow=True)
    picture.text(
        420,
        y + 196,
        f"addresses: a tile of {rows} sticks lies together, then the next tile, then the next middle index",
        small=True,
    )
    return picture
