"""Everything that works on FX graphs: guards, hints, decompositions, and the partition of a graph into kernels."""
