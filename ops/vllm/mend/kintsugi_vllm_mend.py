"""A plugin of vLLM: its CPU build leaves requests for the base alone while adapters answer.

    PYTHONPATH=ops/vllm/mend VLLM_ALLOW_RUNTIME_LORA_UPDATING=True python -m vllm...

vLLM 0.32 on a CPU adds an adapter to each token by `weights[slot]`, and a token of the base has the
slot -1: Python's name for the last one. As long as no request of a step wants an adapter nothing is
added at all; else the base gets whatever adapter came into the last slot last. Slots are filled
from the first, freed when they are needed and never by an unload, and not cleared when they are
freed, so after as many adapters as there are slots the base is wrong, until a restart
(https://github.com/vllm-project/vllm/pull/48421).

Here those tokens keep what they had. Loaded in all processes of vLLM by its entry point; on other
hardware, whose kernels know -1, it changes nothing that is used. Not covered: other versions, for
which it may have nothing to mend or miss what was renamed (then vLLM says so in its log and goes on
without; the proofs of daemon/serving see what comes of it).
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

_MODULES: Final = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
"""Where the kernels are looked up when they are called."""
_KERNELS: Final = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
"""The others call these."""

Kernel = Callable[..., None]
"""(inputs, weights, output, slots, ...): tokens by width, slots by adapter, tokens by width, the
slot of each token. It writes into the output."""


def spare_bases(kernel: Kernel) -> Kernel:
    """The kernel, by which tokens without a slot keep what the output holds."""

    def run_kernel(
        inputs: Any, weights: Any, output: Any, slots: Any, *rest: Any, **named: Any
    ) -> None:
        before = output.clone()
        kernel(inputs, weights, output, slots, *rest, **named)
        # Not by zeros: what is no number in the last slot would stay none.
        output.copy_(before.where(slots.unsqueeze(1) < 0, output))

    return run_kernel


def mend() -> None:
    """Have vLLM use such kernels in this process. Called again it does nothing more."""
    first, *others = (importlib.import_module(name) for name in _MODULES)
    for name in _KERNELS:
        kernel = getattr(first, name)
        if kernel.__qualname__ == name:
            for module in (first, *others):
                setattr(module, name, spare_bases(kernel))
