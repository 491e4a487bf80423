"""Programs of the ``python`` fixture find what they would find in an interpreter that was started for them."""

import os
import subprocess

import pytest


def test_torch_is_not_imported_before_it_is_asked_for(python):
    done = python(
        """
        import os, sys
        print([name for name in sys.modules if name.split(".")[0] in ("torch", "torch_spyre")], sys.argv, __name__)
        os.environ["SPYRE_CARD"] = "strict"
        import torch
        from torch_spyre import _C
        print(torch.ones(3, device="spyre").sum().item(), _C.card_mode())
        """
    )
    assert (done.stdout, done.stderr) == ("[] ['-c'] __main__\n3.0 strict\n", "")


def test_it_ends_as_others_do(python):
    failed = python("1 / 0")
    assert failed.returncode == 1 and failed.stderr.startswith('Traceback (most recent call last):\n  File "<string>"')
    ends = ("raise SystemExit(3)", "import os; os.abort()", "raise KeyboardInterrupt", "")
    assert [python(code).returncode for code in ends] == [3, -6, -2, 0]


def test_a_program_that_hangs_is_killed(python):
    with pytest.raises(subprocess.TimeoutExpired):
        python("import time; time.sleep(600)", timeout=0.5)


def test_what_is_read_while_libraries_are_loaded_starts_a_new_interpreter(python):
    parent = "import os; print(os.getppid())"
    mine = f"{os.getpid()}\n"
    assert python(parent, SPYRE_CARD="strict").stdout != mine
    assert python(parent, OMP_NUM_THREADS="1").stdout == mine
