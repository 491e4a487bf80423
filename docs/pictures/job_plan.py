"""The way of a launch: what the host does, and what the card's stream does with it."""

from docs.pictures.drawing import Drawing

HOST = [
    ("call", "a compiled kernel,\nor an eager op by\nits signature"),
    ("check", "arguments: dtype,\nsize, layout, memory"),
    ("bind", "addresses, and numbers\nof this launch"),
    ("queue", "the plan's steps go\nto the stream;\nmodelled time is known"),
]
CARD = [
    ("Copy in", "host values become\nthe card's formats"),
    ("Compute", "a card program:\nsteps over cores"),
    ("Host", "a function of the\nhost, if the plan\nhas one"),
    ("Copy out", "when the program\nasks for values"),
]


def draw() -> Drawing:
    picture = Drawing(880, 330, "The way of a JobPlan")
    for top, title, boxes, fill in (
        (40, "on the host, at once", HOST, "blue"),
        (190, "on the stream, in order", CARD, "orange"),
    ):
        picture.text(20, top - 14, title, anchor="start", bold=True)
        for i, (name, what) in enumerate(boxes):
            x = 20 + i * 215
            picture.box(x, top, 185, 92, fill)
            picture.text(x + 92, top + 22, name, bold=True)
            for j, line in enumerate(what.split("\n")):
                picture.text(x + 92, top + 44 + 16 * j, line, small=True)
            if i:
                picture.line([(x - 30, top + 46), (x, top + 46)], arrow=True)
    picture.line([(757, 132), (757, 152), (112, 152), (112, 190)], arrow=True)
    note = "The host goes on as soon as a launch is queued. An error of the card is raised by the next call that waits."
    picture.text(20, 312, note, anchor="start", small=True)
    return picture
