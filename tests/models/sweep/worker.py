"""A process that checks architectures: names come in on standard input, results go out on standard output, JSON each.

One that crashes, hangs or takes all memory takes this process with it and nothing else; see ``__main__``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

CARD, PINNED, HOST = 4, 64, 8  # GiB: of the card's memory and of what is reserved for transfers, and for all the rest


def main() -> None:
    # Whatever prints, in Python or C++, must not mix with the results.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["SPYRE_MEMORY_GB"] = str(CARD)
    limit = (CARD + PINNED + HOST) << 30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import torch

    from . import architectures, check

    torch.set_num_threads(1)
    torch.spyre.set_downcast_warning(False)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        name, began = line.strip(), time.monotonic()
        try:
            found: dict[str, Any] = check.check(architectures.make(name))
        except architectures.NotMade as reason:
            found = {"not made": str(reason)}
        except Exception as problem:
            found = {"raised": f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"}
        print(json.dumps(found | {"seconds": round(time.monotonic() - began, 1)}), file=out, flush=True)


if __name__ == "__main__":
    main()
