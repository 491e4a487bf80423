"""What works on FX graphs: hooks of Dynamo and AOTAutograd, decompositions, and cutting kernels out of a graph."""
