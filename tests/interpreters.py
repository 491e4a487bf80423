"""Programs in interpreters of their own, without the second that each would take to import torch.

A server has imported torch, without its backends, and forks for each program. In the program, ``import torch`` finds
that module and loads the backends, as torch does itself at the end of its import: what the device reads of the
environment is read then. Other variables may matter to torch and to C libraries while these are loaded: where one of
them differs from the server's, the program gets a new interpreter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

LATE = ("SPYRE_", "TORCH_SPYRE_", "PYTEST_", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR", "SENCORES", "DXP_LX_FRAC_AVAIL")
LARGEST = 1 << 20  # bytes of a request


class Interpreters:
    """Runs programs; its server starts with the first that can be forked, and ends with this process."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, code: str, environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)``."""
        before = self._environment
        changed = [name for name in {*before, *environment} if before.get(name) != environment.get(name)]
        if all(name.startswith(LATE) for name in changed):
            return self._run_forked(code, environment, timeout)
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            # Started in the background, the tests inherit an ignored Ctrl-C, and so would the program.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def _run_forked(
        self, code: str, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        request = {"code": code, "environment": dict(environment), "directory": os.getcwd()}
        answers, theirs = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        socket.send_fds(self._started(), [json.dumps(request).encode()], [theirs.fileno(), out_end, err_end])
        theirs.close(), os.close(out_end), os.close(err_end)
        with answers, answers.makefile() as lines, ThreadPoolExecutor(2) as readers:
            pid = int(lines.readline())
            printed = [readers.submit(_read, end) for end in (out, err)]
            answers.settimeout(timeout)
            try:
                status = int(lines.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([sys.executable, "-c", code], timeout) from None
            stdout, stderr = (each.result(timeout) for each in printed)
        return subprocess.CompletedProcess([sys.executable, "-c", code], status, stdout, stderr)

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            for end in (self._control, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**self._environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C ends it with the tests, not before
            )
            theirs.close()
        return self._control

    def close(self) -> None:
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.wait()


def _read(end: int) -> str:
    with os.fdopen(end) as file:
        return file.read()


def serve(control: socket.socket) -> dict[str, Any]:
    """Forks for each request until there are no more. Returns in the process of each program, with its request."""
    import torch

    del torch
    while True:
        message, ends, _, _ = socket.recv_fds(control, LARGEST, 3)
        with suppress(ChildProcessError):  # those that followed a program and are done
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            os._exit(0)
        if os.fork() == 0:
            return _follow(json.loads(message), ends)
        for end in ends:
            os.close(end)


def _follow(request: dict[str, Any], ends: list[int]) -> dict[str, Any]:
    """Forks once more for the program; here its number is told, and then how it ends."""
    answers, out, err = ends
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        for end, standard in ((out, 1), (err, 2)):
            os.dup2(end, standard)
            os.close(end)
        return request
    os.close(out), os.close(err)
    with suppress(BrokenPipeError):
        os.write(answers, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


class _Torch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The import of torch in a program: the modules that are there, and then its backends."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "torch"]
        self.modules = {name: sys.modules.pop(name) for name in names}
        self.spec = self.modules["torch"].__spec__

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name == "torch" else None

    def create_module(self, _: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.modules["torch"]

    def exec_module(self, torch: Any) -> None:
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)
        torch.__spec__ = self.spec
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        torch._logging._init_logs()


def _prepare(request: dict[str, Any]) -> types.ModuleType:
    """The state of an interpreter that begins with ``-c``."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv, sys.path[0] = ["-c"], ""
    sys.meta_path.insert(0, _Torch())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return main


def _main() -> None:
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    main = _prepare(request)
    try:
        exec(compile(request["code"], "<string>", "exec"), main.__dict__)
    except Exception as error:
        assert error.__traceback__ is not None
        sys.excepthook(type(error), error.with_traceback(error.__traceback__.tb_next), None)
        sys.exit(1)


if __name__ == "__main__":
    _main()
