"""The identity of a base model: the hash of its weights, as adapters name it."""

import hashlib

import torch
from torch import Tensor, nn


def weights_sha256(model: nn.Module) -> str:
    """Return the hash of a model's loaded weights: its identity. Adapters and the format of the
    files do not change it. Tied weights count once, and buffers that are not stored never."""
    stored = model.state_dict().keys()
    tensors: dict[str, Tensor] = {_plain(name): p for name, p in model.named_parameters()}
    tensors |= {_plain(name): b for name, b in model.named_buffers() if name in stored}
    digest = hashlib.sha256()
    for name in sorted(name for name in tensors if "lora_" not in name):
        tensor = tensors[name].detach()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
