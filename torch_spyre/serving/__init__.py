"""vLLM on the card: the platform that vLLM finds through the entry point ``vllm.platform_plugins``.

Nothing else of the package imports this folder, and only this folder imports vLLM.
"""

from __future__ import annotations


def platform() -> str:
    """Where vLLM finds the class of the platform."""
    return "torch_spyre.serving.platform.SpyrePlatform"
