"""A vLLM plugin: requests for the base stay without adapter while adapters answer.

    PYTHONPATH=ops/vllm/mend VLLM_ALLOW_RUNTIME_LORA_UPDATING=True python -m vllm...

On a CPU vLLM 0.32 adds an adapter to each token by `weights[slot]`, and tokens of the base have
slot -1, which Python reads as the last one. In a step with an adapter the base therefore gets the
adapter that was last in the last slot. Slots fill from the first and are never cleared, so once all
slots were used the base is wrong until a restart (https://github.com/vllm-project/vllm/pull/48421).

With the plugin these tokens keep their output. vLLM's entry point loads it in all processes; on
other hardware, whose kernels know -1, it has no effect. Not covered: other versions, where names
may differ (vLLM then logs it and continues without; daemon/serving's proofs detect the result).
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

_MODULES: Final = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
_KERNELS: Final = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
"""Kernels to replace; vLLM's other kernels call these."""

Kernel = Callable[..., None]
"""(inputs, weights, output, slots, ...): tokens by width, slots by adapter, tokens by width, slot
per token. Writes into the output."""


def spare_bases(kernel: Kernel) -> Kernel:
    """Wrap a kernel so that tokens without a slot (-1) keep their output."""

    def run_kernel(
        inputs: Any, weights: Any, output: Any, slots: Any, *rest: Any, **named: Any
    ) -> None:
        before = output.clone()
        kernel(inputs, weights, output, slots, *rest, **named)
        # Do not multiply by zero: NaN in the last slot would stay NaN.
        output.copy_(before.where(slots.unsqueeze(1) < 0, output))

    return run_kernel


def mend() -> None:
    """Replace vLLM's kernels in this process. A second call has no effect."""
    first, *others = (importlib.import_module(name) for name in _MODULES)
    for name in _KERNELS:
        kernel = getattr(first, name)
        if kernel.__qualname__ == name:
            for module in (first, *others):
                setattr(module, name, spare_bases(kernel))
