"""The best plan among given divisions, by OR-Tools' constraint solver CP-SAT, with a proof of how good it is.

What :mod:`joint_search` searches, written down as a whole: every op has one of its divisions; every buffer that stays
in LX has one place, which the divisions of its users must agree with or from which the ring brings a copy; what is
alive at an op fits; and the sum of the times is least. The files, in the order in which they are used:

* ``equal_layers``: equal ops and buffers of several layers are one here, so that they get the same plan and a deep
  model takes hardly longer than a shallow one.
* ``candidates``: the divisions that could be in a better plan. What alone costs more than the whole plan could still
  gain is left out.
* ``places``: where a buffer may stay in LX, what its users then have of it, and the copies over the ring.
* ``choices``: the divisions of an op that give the same tiles of all shared buffers are one choice.
* ``model``, ``lx_room``: the variables, the constraints and the objective; the room in LX at each op.
* ``solver``: has the model solved, and reads the plan and its optimality back.

The solver begins with what the search found, and ends alike whenever it is given the same.
"""

from .solver import solve

__all__ = ["solve"]
