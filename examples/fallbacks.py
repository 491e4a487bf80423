"""Which ops ran on the CPU, why, and on which line: counted, warned of, or an error."""

import warnings

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    covariance = x.t() @ x / len(x) + torch.eye(x.shape[1], device=x.device)
    return torch.linalg.cholesky(covariance).diagonal().log().sum()


def main() -> None:
    x = torch.randn(100, 8).to("spyre")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        print(program(x).item())
    for warning in seen:
        if issubclass(warning.category, torch.spyre.FallbackWarning):
            print("-", warning.message)
    print(torch.spyre.fallback_counts())
    with torch.spyre.fallback("error"):
        try:
            program(x)
        except NotImplementedError as error:
            print("as an error:", str(error).partition(",")[0])


if __name__ == "__main__":
    main()
