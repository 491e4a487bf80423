"""Modelled power and temperature: watts for each part of the card that is busy, by the hardware description."""

from __future__ import annotations

from ..card import description
from .layout import Work

_PARTS = {
    "power_matrix_w": "matrix_ps",
    "power_vector_w": "vector_ps",
    "power_dram_w": "memory_ps",
    "power_ring_w": "ring_ps",
}


def joules(work: Work) -> float:
    """What the card takes for this work."""
    constants = description.constants()
    picojoules = constants["power_idle_w"] * work.busy_ps
    picojoules += sum(constants[watts] * getattr(work, time) for watts, time in _PARTS.items())
    return picojoules * 1e-12


def watts(work: Work) -> float:
    """While it does this work; of an idle card where there is none."""
    return joules(work) / (work.busy_ps * 1e-12) if work.busy_ps else description.constants()["power_idle_w"]


def celsius(watts: float) -> float:
    """Of a card that takes so many watts for long."""
    constants = description.constants()
    return constants["temperature_inlet_c"] + constants["temperature_c_per_w"] * watts
