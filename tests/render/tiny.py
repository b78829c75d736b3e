"""A byte-level tokenizer without a corpus, in a model folder of its own: every fault can be planted in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from burnish.render import Renderer, load_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
DEFAULTS = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}


def byte_tokenizer(merges: list[tuple[str, str]] | None = None) -> Tokenizer:
    """256 bytes, the given merges (in ByteLevel's spelling: Ġ a space, Ċ a line break), then `SPECIALS`."""
    merges = merges or []
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def tiny_folder(
    folder: Path,
    *,
    template: str | None = CHATML,
    merges: list[tuple[str, str]] | None = None,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(merges).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(DEFAULTS if config is None else config), "utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    return folder


def tiny_renderer(folder: Path, **changes: Any) -> Renderer:
    return Renderer(load_tokenizer(tiny_folder(folder, **changes)))
