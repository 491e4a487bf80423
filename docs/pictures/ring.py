"""The cores on their ring, with the memories around them."""

from math import cos, pi, sin

from docs.pictures.drawing import Drawing
from torch_spyre.card import description


def draw() -> Drawing:
    card = description.constants()
    cores = int(card["cores"])
    picture = Drawing(860, 445, f"{cores} cores on a ring")
    middle_x, middle_y, radius = 250.0, 215.0, 165.0
    corners = [(middle_x + radius * cos(2 * pi * i / 90), middle_y + radius * sin(2 * pi * i / 90)) for i in range(91)]
    picture.line(corners)
    for core in range(cores):
        angle = 2 * pi * core / cores - pi / 2
        fill = "orange" if core in (3, 4, 5, 6) else "blue"
        picture.circle(middle_x + radius * cos(angle), middle_y + radius * sin(angle), 14, fill, str(core))
    picture.text(middle_x, middle_y - 20, "ring, both directions", small=True)
    picture.text(middle_x, middle_y, f"{card['ring_gb_per_s']:g} GB/s for a core that fetches", small=True)
    picture.text(middle_x, middle_y + 20, f"{card['ring_fixed_us']:g} us for a step that does", small=True)
    x = 500
    picture.box(x, 30, 340, 118, "grey")
    picture.text(x + 170, 52, "one core", bold=True)
    picture.box(x + 12, 64, 150, 34, "blue", "matrix unit", small=True)
    picture.box(x + 178, 64, 150, 34, "blue", "vector unit", small=True)
    lx = f"LX: {int(card['lx_bytes']) >> 20} MiB, placed by the compiler, no cache"
    picture.box(x + 12, 106, 316, 32, "green", lx, small=True)
    picture.line([(x + 170, 148), (x + 170, 196)], arrow=True)
    segments = int(card["usable_segments"]) * int(card["segment_bytes"]) >> 30
    memory = f"device memory: {segments} GiB usable, {card['dram_gb_per_s']:g} GB/s"
    memory += f"\nfor all cores; a core spans {int(card['span_bytes']) >> 20} MiB of a tensor"
    picture.box(x, 196, 340, 56, "violet", memory, small=True)
    picture.line([(x + 170, 252), (x + 170, 300)], arrow=True)
    host = f"host: {card['host_gb_per_s_small']:g} GB/s for small copies,"
    host += f"\n{card['host_gb_per_s_large']:g} GB/s for large ones"
    picture.box(x, 300, 340, 50, "red", host, small=True)
    notes = (
        "Where two ops are divided in different ways, a relayout moves a buffer from LX to LX along the ring.",
        "What several cores read, device memory is asked for once: it reaches neighbours (3 … 6) together.",
    )
    for i, note in enumerate(notes):
        picture.text(20, 418 + 16 * i, note, anchor="start", small=True)
    return picture
