"""How well the clock keeps time: kernels that were measured on real cards, compiled and timed by the model."""
