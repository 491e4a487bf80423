"""Eager ops: a call becomes a graph of one op, and the compiler makes a kernel of that graph.

``_C`` calls :func:`compile_call`. :mod:`.calls` holds the steps in their order: :mod:`.call` takes the call apart,
:mod:`.results` finds the sizes and strides of its results, :mod:`.checks` refuses what PyTorch refuses, :mod:`.graph`
builds the graph, and :mod:`.descriptions` compiles it.
"""

from .calls import compile_call

__all__ = ["compile_call"]
