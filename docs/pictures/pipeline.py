"""From a line of a program to the card."""

from docs.pictures.drawing import Drawing

EAGER = "eager op\nx.softmax(-1)"
COMPILED = "torch.compile\na whole graph"
STAGES = [
    ("FX graph", "ATen ops", "grey"),
    ("loop IR", "host elements,\nrounding fixed", "blue"),
    ("passes", "layouts, cores,\nscratchpad", "blue"),
    ("OpSpec", "data, no live\nobject behind it", "violet"),
    ("SuperDSC", "a JSON file\nper op", "violet"),
    ("card program", "steps split\nover cores", "orange"),
    ("JobPlan", "programs, copies,\nhost functions", "orange"),
    ("stream", "in order,\nwith a clock", "green"),
]


def draw() -> Drawing:
    picture = Drawing(1040, 250, "From a line of a program to the card")
    picture.box(10, 20, 150, 52, "green", EAGER, small=True)
    picture.box(180, 20, 150, 52, "green", COMPILED, small=True)
    picture.box(500, 20, 240, 52, "red", "what the card cannot do:\nthe CPU, warned and counted", small=True)
    width, gap, top = 118, 10, 120
    for i, (name, what, fill) in enumerate(STAGES):
        x = 10 + i * (width + gap)
        picture.box(x, top, width, 70, fill)
        picture.text(x + width / 2, top + 20, name, bold=True)
        for j, line in enumerate(what.split("\n")):
            picture.text(x + width / 2, top + 42 + 15 * j, line, small=True)
        if i:
            picture.line([(x - gap, top + 35), (x, top + 35)], arrow=True)
    picture.line([(85, 72), (85, top)], arrow=True)
    picture.line([(255, 72), (255, 96), (105, 96), (105, top)], arrow=True)
    picture.line([(126, top + 6), (138, 84), (480, 84), (500, 60)], arrow=True, dashed=True)
    rooms = (
        (1, 3, "front end: torch_spyre/_inductor"),
        (4, 6, "back end: torch_spyre/backend"),
        (7, 7, "csrc/card"),
    )
    for first, last, room in rooms:
        start, end = 10 + first * (width + gap), 10 + last * (width + gap) + width
        picture.line([(start, 204), (end, 204)])
        picture.text((start + end) / 2, 222, room, small=True)
    return picture
