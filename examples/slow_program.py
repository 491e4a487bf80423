"""Why is it slow? What the backend did with a program, op by op, and which change saves how much."""

import torch
from torch import Tensor


def program(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    hidden = torch.nn.functional.gelu(x @ up.t())
    if hidden.sum() > 0:  # a graph break: the host has to know the sum before it goes on
        hidden = hidden * 2
    return hidden @ down.t()


def main() -> None:
    x, up, down = (torch.randn(size).half().to("spyre") for size in ((256, 512), (1024, 512), (512, 1024)))
    report = torch.spyre.explain(program, x, up, down)
    print(f"{report.microseconds:.1f} us on the card")
    for finding in report.data["findings"][:4]:
        print(f"- {finding['kind']}: {finding.get('advice', finding['text'])}")
        if "saving_us" in finding:
            print(f"  it saves {finding['saving_us']:.1f} us, line: {report.data['texts'][finding['source']]}")
    assert any(finding["kind"] == "graph break" for finding in report.data["findings"])


if __name__ == "__main__":
    main()
