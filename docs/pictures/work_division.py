"""How the planner divides a product over 32 cores."""

from docs.pictures.drawing import Drawing
from docs.pictures.planned import planned

M, K, N = 512, 512, 1024
CHOSEN = 13  # the core whose part is shown


def draw() -> Drawing:
    import torch

    step = planned(torch.matmul, (M, K), (K, N))["steps"][0]
    rows, columns, depth = step["slices"]
    picture = Drawing(930, 430, f"A product of {M} x {K} and {K} x {N}, divided over {rows * columns * depth} cores")
    title = f"C[{M}, {N}] = A[{M}, {K}] @ B[{K}, {N}] on {rows} x {columns} x {depth} cores"
    picture.text(20, 28, title, anchor="start", bold=True)
    row, column = divmod(CHOSEN, columns)
    height, width = 180 / rows, 512 / columns
    for i in range(rows):
        picture.box(
            20, 220 + i * height, 180, height, "blue" if i == row else "grey", f"rows {i * M // rows} …", small=True
        )
    for j in range(columns):
        picture.box(
            260 + j * width, 60, width, 140, "green" if j == column else "grey", f"{j * N // columns} …", small=True
        )
    for core in range(rows * columns):
        i, j = divmod(core, columns)
        fill = "orange" if core == CHOSEN else "blue" if i == row else "green" if j == column else "grey"
        picture.box(260 + j * width, 220 + i * height, width, height, fill, f"core {core}", small=True)
    picture.text(110, 212, "A", bold=True)
    picture.text(248, 130, "B", bold=True, anchor="end")
    picture.text(800, 310, "C", bold=True)
    lines = [
        f"core {CHOSEN} writes",
        f"{M // rows} x {N // columns} of C.",
        "It reads one band",
        "of A and one of B:",
        "each is loaded once",
        "and shared by the",
        "cores that need it.",
    ]
    for i, line in enumerate(lines):
        picture.text(790, 80 + 18 * i, line, anchor="start", small=True)
    picture.text(
        20,
        420,
        "Columns are cut between sticks of 64; a cut of the depth would pass partial sums along the ring.",
        anchor="start",
        small=True,
    )
    return picture
