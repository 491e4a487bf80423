"""Training on the card: a classifier learns, by compiled steps, with products in the card's 16-bit numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points on three rings, which no straight line separates."""
    kind = torch.randint(0, 3, (count,))
    angle, radius = 6.2832 * torch.rand(count), 0.5 + kind + 0.15 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1), kind


def main() -> None:
    torch.manual_seed(0)
    torch.spyre.set_downcast_warning(False)  # classes are int64, and fit
    # Master weights in fp32, as usual: steps are smaller than the last place of 9 fraction bits.
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)).to("spyre")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    @torch.compile
    def loss_of(points: Tensor, kinds: Tensor) -> Tensor:
        with torch.autocast("spyre", dtype=torch.float16):  # products in the card's format, losses in fp32
            scores = model(points)
        return F.cross_entropy(scores.float(), kinds)

    losses = []
    for step in range(40):
        points, kinds = rings(256)
        loss = loss_of(points.to("spyre"), kinds.to("spyre"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 8 == 0 or step == 39:
            print(f"step {step:2}   loss {losses[-1]:.3f}")
    points, kinds = rings(1000)
    with torch.no_grad():
        right = (model(points.to("spyre")).argmax(-1).cpu() == kinds).float().mean().item()
    print(
        f"{right:.0%} of 1000 new points are right; what ran on the CPU: {torch.spyre.fallback_counts() or 'nothing'}"
    )
    assert losses[-1] < 0.5 * losses[0], "it should learn"


if __name__ == "__main__":
    main()
