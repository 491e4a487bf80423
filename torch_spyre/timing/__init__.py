"""How long the card takes, and why; and how well its clock keeps time.

``record()`` collects what a program launches, ``attribute()`` says where the time of launches goes.
"""

from .attribution import Row, Step, attribute, steps_of
from .recording import Recording, record

__all__ = ["Recording", "Row", "Step", "attribute", "record", "steps_of"]
