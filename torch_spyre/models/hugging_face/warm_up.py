"""Compiling ahead of the first request."""

from __future__ import annotations

from typing import Any

import torch


def warm_up(model: Any, longest: int, new_tokens: int = 2, batch_size: int = 1, **options: Any) -> tuple[int, ...]:
    """Compiles what ``generate`` needs for prompts of up to ``longest`` tokens and ``new_tokens`` more.

    Returns the sizes that prompts are padded to; caches go through the same ones. After it, ``model.generate(...,
    **options)`` on this many sequences compiles nothing, however it chooses tokens: that is the host's work.
    """
    from .bucketed_cache import lengths_that_change, sizes_of

    sizes = sizes_of(model.config.get_text_config(decoder=True)).up_to(longest)
    with lengths_that_change():
        for size in sizes:
            # A token after the first needs the next size of the cache; the longest prompt goes all the way.
            count = new_tokens if size == sizes[-1] else min(new_tokens, 2)
            prompt = torch.zeros((batch_size, size), dtype=torch.int64, device=model.device)
            mask = torch.ones_like(prompt)
            model.generate(prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, **options)
    return sizes
