"""``python -m docs.pictures`` draws every picture of the documentation anew; a test compares them."""

from collections.abc import Callable
from pathlib import Path

from docs.pictures import job_plan, lx, pipeline, ring, sticks, work_division
from docs.pictures.drawing import Drawing

FOLDER = Path(__file__).parent
PICTURES: dict[str, Callable[[], Drawing]] = {
    "sticks": sticks.draw,
    "pipeline": pipeline.draw,
    "work_division": work_division.draw,
    "lx": lx.draw,
    "ring": ring.draw,
    "job_plan": job_plan.draw,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
