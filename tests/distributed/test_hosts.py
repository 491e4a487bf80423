"""Ranks that cannot see each other's memory, as on different hosts: Gloo carries their bytes, to the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .ranks import free_port

ROOT = Path(__file__).parents[2]
APART = ("unshare", "--pid", "--fork", "--kill-child")  # in a process namespace of its own


def world(*prefixes: tuple[str, ...]) -> list[list]:
    """What the ranks say, each started behind a prefix."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(prefixes))}
    place |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.distributed.hosts"],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, prefix in enumerate(prefixes)
    ]
    try:
        return [json.loads(process.communicate(timeout=240)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_the_same_bits_between_hosts() -> None:
    if subprocess.run([*APART, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us make namespaces")
    together, apart = world((), ()), world((), APART)
    assert all(shares for *_, shares in together) and not any(shares for *_, shares in apart)
    for differing, found, mismatch, _ in [*together, *apart]:
        assert differing == []
        assert found == together[0][1]
        assert "rank 0 calls all_reduce(SUM) of Half [4], rank 1 calls all_reduce(SUM) of Half [5]" in mismatch
