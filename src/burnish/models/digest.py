"""A digest of weights: equal iff names, dtypes, shapes and bytes are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


def _tensor_digest(item: tuple[str, Tensor]) -> bytes:
    name, tensor = item
    data = tensor.detach().cpu().contiguous()
    head = f"{name}\x1f{data.dtype}\x1f{tuple(data.shape)}\x1f"
    digest = hashlib.blake2b(head.encode("utf-8"), digest_size=32)
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def weights_digest(tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> str:
    """32 hex digits over all tensors in order of name; `dtype` casts floating tensors first.

    Two threads: hashing releases the interpreter lock, and a 135M model in fp32 is half a gigabyte.
    """
    items = [
        (name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor)
        for name, tensor in sorted(tensors.items())
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        parts = list(pool.map(_tensor_digest, items))
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()
