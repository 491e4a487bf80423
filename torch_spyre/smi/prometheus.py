"""The counters in Prometheus's text format, and a server for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from . import power
from .sampling import CardRates, ProcessRates, Rates, Sample, rates, sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LEAST_SECONDS = 0.5  # over which shares and watts are measured

Labels = dict[str, str]


@dataclass(frozen=True)
class _Metric:
    name: str
    kind: str
    help: str


def _of_cards(card: CardRates) -> Iterator[tuple[_Metric, Labels, float]]:
    labels = {"card": str(card.id)}
    for name, value, help in (
        ("busy_ratio", card.busy, "Share of wall time in which the software card carried something out."),
        ("power_watts", card.watts, "Modelled power while the card works."),
        ("temperature_celsius", card.celsius, "Modelled temperature at that power."),
        ("matrix_active_ratio", card.share(card.work.matrix_ps), "Share of modelled busy time of the matrix units."),
        ("memory_capacity_bytes", card.capacity, "Device memory of the card."),
    ):
        yield _Metric(f"spyre_card_{name}", "gauge", help), labels, value


def _of_processes(each: ProcessRates) -> Iterator[tuple[_Metric, Labels, float]]:
    process, card, work = each.process, each.card, each.card.work
    labels = {"card": str(card.physical), "pid": str(process.pid)}
    info = {**labels, "user": process.user, "mode": process.counters.mode, "command": process.command}
    yield _Metric("spyre_process_info", "gauge", "A process that has the card."), info, 1

    def gauge(name: str, help: str, value: float) -> tuple[_Metric, Labels, float]:
        return _Metric(f"spyre_{name}", "gauge", help), labels, value

    def counter(name: str, help: str, value: float, **more: str) -> tuple[_Metric, Labels, float]:
        return _Metric(f"spyre_{name}_total", "counter", help), {**labels, **more}, value

    yield gauge("memory_allocated_bytes", "Device memory of tensors.", card.allocated)
    yield gauge("memory_peak_bytes", "Most device memory that tensors had.", card.peak)
    yield gauge("memory_reserved_bytes", "Device memory that the allocator holds.", card.reserved)
    yield gauge("streams", "Streams that had work.", len(card.streams))
    yield counter("working_seconds", "Wall time in which the software card worked.", work.working_ns * 1e-9)
    yield counter("modelled_busy_seconds", "Modelled time of all work.", work.busy_ps * 1e-12)
    yield counter("modelled_energy_joules", "Modelled energy of all work.", power.joules(work))
    yield counter("kernels", "Kernels launched, and copies and fills on the card.", work.kernels)
    yield counter("transfers", "Copies between host and card.", work.transfers)
    units = {"matrix": work.matrix_ps, "vector": work.vector_ps, "dram": work.memory_ps}
    for unit, time_ps in {**units, "ring": work.ring_ps, "pcie": work.host_ps}.items():
        yield counter("modelled_unit_seconds", "Modelled time of a part of the card.", time_ps * 1e-12, unit=unit)
    for direction, size in (("read", work.bytes_read), ("written", work.bytes_written)):
        yield counter("dram_bytes", "Traffic of device memory.", size, direction=direction)
    for direction, size in (("received", work.bytes_from_host), ("sent", work.bytes_to_host)):
        yield counter("pcie_bytes", "Traffic between host and card.", size, direction=direction)
    for stream in card.streams:
        queued = _Metric("spyre_stream_queued", "gauge", "Tasks that wait in a stream, or are under way.")
        yield queued, {**labels, "stream": str(stream.id)}, stream.queued
        more = {"stream": str(stream.id)}
        yield counter("stream_modelled_seconds", "Modelled clock of a stream.", stream.time_ps * 1e-12, **more)


def exposition(now: Rates) -> str:
    """All metrics, each with its head once and its samples together, as the format wants."""
    found: dict[_Metric, list[str]] = {
        _Metric("spyre_processes", "gauge", "Processes that have a card."): [
            f"spyre_processes {len({each.process.pid for each in now.processes})}"
        ]
    }
    samples = [each for card in now.cards if card.capacity for each in _of_cards(card)]
    samples += [each for process in now.processes for each in _of_processes(process)]
    for metric, labels, value in samples:
        shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        found.setdefault(metric, []).append(f"{metric.name}{{{shown}}} {value!r}")
    lines = []
    for metric, samples_of in found.items():
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *samples_of]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Recent:
    """What happened since the last question, or the one before where that was a moment ago."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: Sample = sample()
        self._rates: Rates | None = None

    def rates(self) -> Rates:
        with self._lock:
            age = (time.monotonic_ns() - self._before.monotonic_ns) / 1e9
            if self._rates is None and age < _LEAST_SECONDS:
                time.sleep(_LEAST_SECONDS - age)
            if self._rates is None or age >= _LEAST_SECONDS:
                after = sample()
                self._rates, self._before = rates(self._before, after), after
            return self._rates


def server(address: str) -> ThreadingHTTPServer:
    """A server at ``[HOST:]PORT``; at this machine alone where no host is given."""
    recent = Recent()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer_with(lambda: exposition(recent.rates()), CONTENT_TYPE)
            elif path == "/":
                self._answer_with(lambda: "The cards of this machine, for Prometheus: /metrics\n", "text/plain")
            else:
                self._answer(404, "There is /metrics, and nothing else.\n", "text/plain")

        def _answer_with(self, text: Callable[[], str], kind: str) -> None:
            try:
                found = text()
            except OSError as error:  # others can write to the directory now
                return self._answer(500, f"{error}\n", "text/plain")
            self._answer(200, found, kind)

        def _answer(self, status: int, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line per question would fill a disk."""

    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"--serve {address}: expected PORT or HOST:PORT, as in 9400 or 0.0.0.0:9400")
    host = host.strip("[]") or "127.0.0.1"

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def server_bind(self) -> None:
            """Without the question of what this host is called, which may take as long as a network does."""
            TCPServer.server_bind(self)
            self.server_name, self.server_port = host, self.server_address[1]

    return Server((host, int(port)), Handler)


def serve(address: str) -> None:
    """Answers until Ctrl-C."""
    with server(address) as serving:
        host = f"[{serving.server_name}]" if ":" in serving.server_name else serving.server_name
        print(f"http://{host}:{serving.server_port}/metrics", flush=True)
        serving.serve_forever()
