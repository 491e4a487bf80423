"""Plans of tensor parallelism for models of which transformers divides the last product only.

They are for ``tp_plan="auto"`` on cards. Attention is divided by heads, and of each expert every card has an equal
part. What a plan of the package or of the program says goes first. Mamba layers stay whole: their packed projections
have no placement of DTensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ...constants import DEVICE_NAME

_LOCAL, _BIASED_EXPERTS = "spyre_local_parameters", "spyre_biased_experts"

_ATTENTION = {
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise",
}

# By the names in a layer. As styles of single parameters, "rowwise" cuts the last dimension and "colwise" the one
# before it, or the only one.
_PLANS = {
    "gpt_oss": _ATTENTION
    | {
        "self_attn": _LOCAL,
        "self_attn.sinks": "colwise",
        "mlp.experts": _BIASED_EXPERTS,
        "mlp.experts.gate_up_proj": "rowwise",
        "mlp.experts.gate_up_proj_bias": "rowwise",
        "mlp.experts.down_proj": "colwise",
    },
    "granitemoehybrid": _ATTENTION
    | {
        "block_sparse_moe.experts": "moe_tp_experts",
        "block_sparse_moe.experts.gate_up_proj": "packed_colwise",
        "block_sparse_moe.experts.down_proj": "rowwise",
        "shared_mlp.input_linear": "packed_colwise",
        "shared_mlp.output_linear": "rowwise",
    },
}


def add_plans(mixin: ModuleType) -> None:
    """Change ``transformers.distributed.mixin``."""
    from transformers.distributed import tensor_parallel

    original = mixin.apply_tensor_parallelism

    @functools.wraps(original)
    def apply_tensor_parallelism(model: Any, tp_mesh: Any, tp_plan: dict[str, str] | None = None) -> Any:
        config = model.config.distributed_config
        if tp_mesh.device_type == DEVICE_NAME and config.ep_size in (None, 1):
            _register_styles(tensor_parallel)
            own = {f"model.layers.*.{name}": style for name, style in _PLANS.get(model.config.model_type, {}).items()}
            tp_plan = own | (model.tp_plan if tp_plan is None else tp_plan)
            model._tp_plan = tp_plan  # by which the loader sets memory aside
        return original(model, tp_mesh, tp_plan)

    mixin.apply_tensor_parallelism = apply_tensor_parallelism  # type: ignore[attr-defined]


@functools.cache
def _register_styles(parallel: ModuleType) -> None:
    class LocalParameters(parallel.TensorParallelLayer):  # type: ignore[name-defined]
        """Of a module whose forward uses its part of a parameter by itself."""

        def should_use_local_tensors(self, module: Any) -> bool:
            return True

    class BiasedExperts(parallel.MoeExpertsParallel):  # type: ignore[name-defined]
        """Experts whose results have a bias, which is in the sum over the cards once."""

        @contextmanager
        def context_around_forward(self, module: Any, mesh: Any) -> Iterator[None]:
            with super().context_around_forward(module, mesh):
                bias = module._parameters["down_proj_bias"]
                module._parameters["down_proj_bias"] = bias / mesh.size()
                try:
                    yield
                finally:
                    module._parameters["down_proj_bias"] = bias

    parallel.ALL_PARALLEL_STYLES.register(_LOCAL, LocalParameters())
    parallel.ALL_PARALLEL_STYLES.register(_BIASED_EXPERTS, BiasedExperts())
