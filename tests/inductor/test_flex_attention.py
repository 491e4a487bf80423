"""FlexAttention: functions of scores and masks, written out for the card."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, LENGTH, WIDTH = 2, 150, 16


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, LENGTH, WIDTH).to(dtype) for _ in range(3)]


def relative(score, batch, head, query, key):
    return score + (query - key) * 0.1 * (head + 1)


def causal(batch, head, query, key):
    return query >= key


def expected(q, k, v):
    """relative and causal, on the host."""
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    slope = 0.1 * (torch.arange(HEADS) + 1)[:, None, None]
    scores = q @ k.mT / WIDTH**0.5 + distance * slope
    return torch.softmax(scores.masked_fill(distance < 0, -torch.inf), -1) @ v


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_values_and_gradients(compiled):
    torch._dynamo.reset()
    with torch.spyre.fallback("count"):  # the blocks are sorted on the host
        mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="spyre")
    host = [each.requires_grad_() for each in inputs()]
    card = [each.detach().to("spyre").requires_grad_() for each in host]
    attend = torch.compile(flex_attention, fullgraph=True) if compiled else flex_attention
    with torch.spyre.fallback("error"):
        got = attend(*card, score_mod=relative, block_mask=mask)
        got.square().sum().backward()
    want = expected(*host)
    want.square().sum().backward()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(card, host, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)


def test_what_functions_capture():
    torch._dynamo.reset()
    q, k, v = (each.to("spyre") for each in inputs(torch.float16))
    bias = torch.tensor([0.5, -2.0], device="spyre")
    document = (torch.arange(LENGTH) // 40).to("spyre")

    def biased(score, batch, head, query, key):
        return score + bias[head] * (query == key)

    with torch.spyre.fallback("count"):
        mask = create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, LENGTH, LENGTH, "spyre")
        got, normalizer = torch.compile(flex_attention)(q, k, v, score_mod=biased, block_mask=mask, return_lse=True)
    scores = q.cpu().float() @ k.cpu().float().mT / WIDTH**0.5 + bias.cpu()[:, None, None] * torch.eye(LENGTH)
    same = document.cpu()[:, None] == document.cpu()
    scores = scores.masked_fill(~same, -torch.inf)
    torch.testing.assert_close(got.cpu().float(), torch.softmax(scores, -1) @ v.cpu().float(), rtol=1e-2, atol=5e-3)
    torch.testing.assert_close(normalizer.cpu(), scores.logsumexp(-1), rtol=1e-2, atol=1e-2)
