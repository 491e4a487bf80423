"""One sample as a table for people, or as an object for programs."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from .. import __version__
from ..units import seconds
from . import power
from .layout import Stream
from .sampling import CardRates, ProcessRates, Rates

_BAR = 16
_UNITS = {"matrix": "matrix_ps", "vector": "vector_ps", "dram": "memory_ps", "ring": "ring_ps", "pcie": "host_ps"}


def table(rates: Rates, width: int = 100) -> list[str]:
    """The cards and the processes that have one."""
    title = (
        f"spyre smi {__version__}    {rates.date:%Y-%m-%d %H:%M:%S}    "
        f"host: processor {100 * rates.cpu:.0f} %, memory {100 * rates.memory:.0f} %"
    )
    if not rates.processes:
        return [title, "", "No process of this user has a card.", *_notes(rates)]
    cards = [card for card in rates.cards if card.capacity]
    return [
        title,
        "",
        "card    busy  memory" + " " * (_BAR + 25) + "power   temp  streams  queued",
        *(_card(card) for card in cards),
        "",
        "card  "
        + "".join(f"{unit:>7}" for unit in _UNITS)
        + "    read GiB/s  written GiB/s   of modelled time at work",
        *(_units(card) for card in cards),
        "",
        "card      pid  user      mode     busy      memory       peak    modelled   kernels  command",
        *(_process(each)[:width].rstrip() for each in rates.processes if each.card.peak or each.card.streams),
        *_notes(rates),
    ]


def _card(card: CardRates) -> str:
    full = min(_BAR, ceil(_BAR * card.allocated / card.capacity))
    memory = f"[{'#' * full}{'.' * (_BAR - full)}] {_size(card.allocated):>10} of {_size(card.capacity):>9}"
    return (
        f"{card.id:4}  {100 * card.busy:4.0f} %  {memory}  {card.watts:5.1f} W {card.celsius:4.0f} C "
        f"{card.streams:8} {card.queued:7}"
    )


def _units(card: CardRates) -> str:
    shares = "".join(f"{100 * card.share(getattr(card.work, name)):5.0f} %" for name in _UNITS.values())
    rates = f"{card.gib_per_s(card.work.bytes_read):14.1f} {card.gib_per_s(card.work.bytes_written):14.1f}"
    return f"{card.id:4}  {shares}{rates}"


def _process(each: ProcessRates) -> str:
    process, card = each.process, each.card
    return (
        f"{card.physical:4} {process.pid:8}  {process.user:<8.8}  {process.counters.mode:<6} {100 * each.busy:4.0f} % "
        f"{_size(card.allocated):>11} {_size(card.peak):>10} {seconds(card.work.busy_ps * 1e-12):>11} "
        f"{card.work.kernels:9}  {process.command}"
    )


def _notes(rates: Rates) -> list[str]:
    return ["", *rates.notes] if rates.notes else []


def _size(count: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def to_json(rates: Rates) -> str:
    """One line. Shares are of 1, memory is in bytes, and what ends in ``_s`` in seconds."""
    return json.dumps(
        {
            "time": rates.date.isoformat(timespec="milliseconds"),
            "host": {"cpu": rates.cpu, "memory": rates.memory},
            "cards": [_card_object(card) for card in rates.cards],
            "processes": [_process_object(each) for each in rates.processes],
            "notes": list(rates.notes),
        }
    )


def _card_object(card: CardRates) -> dict[str, Any]:
    work = card.work
    return {
        "id": card.id,
        "interval_s": card.seconds,
        "busy": card.busy,
        "power_w": card.watts,
        "temperature_c": card.celsius,
        "memory": {
            "capacity": card.capacity,
            "allocated": card.allocated,
            "peak": card.peak,
            "reserved": card.reserved,
        },
        "active": {unit: card.share(getattr(work, name)) for unit, name in _UNITS.items()},
        "gib_per_s": {
            "dram_read": card.gib_per_s(work.bytes_read),
            "dram_written": card.gib_per_s(work.bytes_written),
            "pcie_received": card.gib_per_s(work.bytes_from_host),
            "pcie_sent": card.gib_per_s(work.bytes_to_host),
        },
        "modelled_s": work.busy_ps * 1e-12,
        "kernels": work.kernels,
        "transfers": work.transfers,
        "streams": card.streams,
        "queued": card.queued,
    }


def _process_object(each: ProcessRates) -> dict[str, Any]:
    process, card, work = each.process, each.card, each.card.work
    return {
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "mode": process.counters.mode,
        "card": card.physical,
        "busy": each.busy,
        "memory": {"allocated": card.allocated, "peak": card.peak, "reserved": card.reserved},
        "total": {
            "working_s": work.working_ns * 1e-9,
            "modelled_s": work.busy_ps * 1e-12,
            "energy_j": power.joules(work),
            "active_s": {unit: getattr(work, name) * 1e-12 for unit, name in _UNITS.items()},
            "kernels": work.kernels,
            "transfers": work.transfers,
            "bytes": {
                "dram_read": work.bytes_read,
                "dram_written": work.bytes_written,
                "pcie_received": work.bytes_from_host,
                "pcie_sent": work.bytes_to_host,
            },
        },
        "streams": [_stream_object(stream) for stream in card.streams],
    }


def _stream_object(stream: Stream) -> dict[str, Any]:
    return {
        "id": stream.id,
        "submitted": stream.submitted,
        "queued": stream.queued,
        "modelled_s": stream.time_ps * 1e-12,
    }
