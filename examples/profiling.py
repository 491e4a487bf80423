"""Profile a program with torch.profiler: kernels of the card in modelled time, beside the host's ops."""

import torch
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    layer = torch.nn.TransformerEncoderLayer(128, 4, batch_first=True).half().eval().to("spyre")
    x = torch.randn(2, 64, 128).half().to("spyre")
    compiled = torch.compile(layer)
    with torch.no_grad():
        compiled(x)  # compiles
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
            compiled(x)
            torch.spyre.synchronize()
    rows = [row for row in profiled.events() if row.device_type == torch.autograd.DeviceType.PrivateUse1]
    print(f"{len(rows)} rows of the card")
    for row in rows[:8]:
        print(f"  {row.time_range.elapsed_us():8.2f} us  {row.name}")
    assert rows


if __name__ == "__main__":
    main()
