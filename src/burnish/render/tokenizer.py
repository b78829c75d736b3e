"""A model's tokenizer, read from its folder without transformers.

Leaves out chat templates' meaning (see `template`) and tokenizers that are not a `tokenizer.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from burnish.core.errors import DataError, ModelError, TemplateError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that a chat template may read as variables, as transformers passes them."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids of a text, and for each the characters [start, end) of the text that it stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class TextTokenizer:
    """Text <-> ids, with the tokens that end a turn.

    `eos_token_ids`: every end token that the folder declares (tokenizer_config.json, generation_config.json,
    config.json), the tokenizer's own first. `stop_token_ids`: the same as a set to stop at. `pad_token_id`
    is the declared pad token; where none is declared it is the first end token (`pad_is_declared` is False):
    padding is masked by position everywhere, never by id, so either is safe.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        named_tokens: dict[str, str],
        eos_token_ids: Sequence[int],
        pad_token_id: int | None,
        chat_template: str | None,
        digest: str,
        source: str,
    ) -> None:
        self._backend = backend
        self.named_tokens = dict(named_tokens)
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.stop_token_ids = frozenset(self.eos_token_ids)
        self.pad_is_declared = pad_token_id is not None
        self.pad_token_id = self.eos_token_ids[0] if pad_token_id is None else pad_token_id
        self.chat_template = chat_template
        self.digest = digest
        self.source = source
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        added = backend.get_added_tokens_decoder()
        self.added_token_ids = frozenset(added)
        self.special_tokens = {token.content: i for i, token in added.items() if token.special}

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, or None."""
        return self.named_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The tokenizer's own end token, or None where only the model's configuration names one."""
        return self.named_tokens.get("eos_token")

    @property
    def unk_token(self) -> str | None:
        """The unknown token, or None."""
        return self.named_tokens.get("unk_token")

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written in it are parsed, none is added.

        Raises: DataError where the text holds a lone surrogate, which no encoding can carry.
        """
        return self.encode_with_offsets(text).ids

    def encode_with_offsets(self, text: str) -> Encoding:
        """Ids of a text and the characters each stands for.

        Raises: DataError, as `encode`.
        """
        try:
            encoding = self._backend.encode(text, add_special_tokens=False)
        except TypeError:  # what tokenizers raises for a str that is not UTF-8
            raise _surrogate_error(text) from None
        return Encoding(encoding.ids, encoding.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens kept. Bytes that are no UTF-8, and ids beyond the vocabulary (a padded
        embedding has some), become U+FFFD."""
        pieces: list[str] = []
        run: list[int] = []
        for token in map(int, ids):
            if self._backend.id_to_token(token) is None:
                pieces += [self._backend.decode(run, skip_special_tokens=False), "\ufffd"]
                run = []
            else:
                run.append(token)
        return "".join([*pieces, self._backend.decode(run, skip_special_tokens=False)])

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Text of a sampled reply without the end tokens and padding after it.

        Special tokens inside the reply stay visible: dropping them would glue together what they kept apart
        (`4<|im_start|>2` is not an answer of 42), and tool-call grammars are made of them.
        """
        end = len(ids)
        while end and (int(ids[end - 1]) in self.stop_token_ids or int(ids[end - 1]) == self.pad_token_id):
            end -= 1
        return self.decode(ids[:end])

    def token_text(self, token: int) -> str:
        """Text of one id, for a person to read; a token that is part of a character shows as U+FFFD."""
        return self.decode([token])

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact spelling, or None."""
        return self._backend.token_to_id(token)


def load_tokenizer(folder: Path, *, model_vocab_size: int | None = None) -> TextTokenizer:
    """The tokenizer in a model folder.

    Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja,
    generation_config.json and config.json. `model_vocab_size`: rows of the model's embedding; a tokenizer
    with larger ids is refused.

    Raises: ModelError where a file is missing, broken or contradicts another; TemplateError where a list of
    named templates has no `default`.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            "no tokenizer.json in the model folder",
            where=str(folder),
            fix="save the tokenizer there with save_pretrained (fast tokenizers write tokenizer.json)",
        )
    raw = path.read_bytes()
    backend = _parse_backend(raw, path)
    config = {
        **_read_json(folder / "special_tokens_map.json"),
        **_read_json(folder / "tokenizer_config.json"),
    }
    model_config, generation = (
        _read_json(folder / "config.json"),
        _read_json(folder / "generation_config.json"),
    )
    named = {name: text for name in NAMED_TOKENS if (text := _token_text(config.get(name))) is not None}
    _check_added_tokens(backend, config, folder)
    template = _read_template(folder, config)
    tokenizer = TextTokenizer(
        backend,
        named_tokens=named,
        eos_token_ids=_end_tokens(backend, named, generation, model_config, folder),
        pad_token_id=_pad_token(backend, named, generation, model_config, folder),
        chat_template=template,
        digest=hashlib.sha256(raw + b"\x00" + (template or "").encode("utf-8")).hexdigest(),
        source=str(folder),
    )
    if model_vocab_size is not None and tokenizer.vocab_size > model_vocab_size:
        raise ModelError(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, "
            f"the model's embedding has {model_vocab_size} rows",
            where=str(path),
            fix="use the tokenizer that belongs to the model, or resize its embedding",
        )
    return tokenizer


def _parse_backend(raw: bytes, path: Path) -> Tokenizer:
    try:
        backend = Tokenizer.from_buffer(raw)
    except ValueError as error:
        raise ModelError(
            f"tokenizer.json cannot be read: {error}", where=str(path), fix="fetch the file again"
        ) from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path.name} is not JSON: {error}", where=str(path), fix="fetch the file again") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path.name} holds no JSON object", where=str(path), fix="fetch the file again")
    return data


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):  # a serialised AddedToken
        value = value.get("content")
    return value if isinstance(value, str) else None


def _check_added_tokens(backend: Tokenizer, config: dict[str, Any], folder: Path) -> None:
    declared = config.get("added_tokens_decoder")
    for key, value in declared.items() if isinstance(declared, dict) else ():
        text = _token_text(value)
        if text is not None and backend.token_to_id(text) != int(key):
            raise ModelError(
                f"token {text!r} is {key} in tokenizer_config.json and {backend.token_to_id(text)} in tokenizer.json",
                where=str(folder),
                fix="fetch both files again from one version of the model",
            )


def _read_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        if not isinstance(named.get("default"), str):
            raise TemplateError(
                f"the chat templates are named {sorted(map(str, named))}; none is called 'default'",
                where=str(folder / "tokenizer_config.json"),
                fix="write the one to train on to chat_template.jinja",
            )
        value = named["default"]
    return value if isinstance(value, str) else None


def _declared_ids(data: dict[str, Any], key: str) -> list[int]:
    nested = data.get("text_config")  # multimodal models keep the language model's settings here
    value = data.get(key, nested.get(key) if isinstance(nested, dict) else None)
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def _named_id(backend: Tokenizer, named: dict[str, str], key: str, folder: Path) -> list[int]:
    if key not in named:
        return []
    token = backend.token_to_id(named[key])
    if token is None:
        raise ModelError(
            f"{key} is {named[key]!r}, which tokenizer.json does not have",
            where=str(folder / "tokenizer_config.json"),
            fix="fetch both files again from one version of the model",
        )
    return [token]


def _end_tokens(
    backend: Tokenizer, named: dict[str, str], generation: dict[str, Any], model: dict[str, Any], folder: Path
) -> list[int]:
    ids = _named_id(backend, named, "eos_token", folder)
    ids += _declared_ids(generation, "eos_token_id") + _declared_ids(model, "eos_token_id")
    if not ids:
        raise ModelError(
            "the folder declares no end token: a model trained with it would never stop",
            where=str(folder),
            fix="set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
        )
    unknown = [i for i in ids if backend.id_to_token(i) is None]
    if unknown:
        raise ModelError(
            f"end tokens {unknown} are not in the vocabulary",
            where=str(folder / "generation_config.json"),
            fix="fetch tokenizer and configuration again from one version of the model",
        )
    return ids


def _pad_token(
    backend: Tokenizer, named: dict[str, str], generation: dict[str, Any], model: dict[str, Any], folder: Path
) -> int | None:
    ids = _named_id(backend, named, "pad_token", folder)
    ids += _declared_ids(generation, "pad_token_id") + _declared_ids(model, "pad_token_id")
    return ids[0] if ids else None


def _surrogate_error(text: str) -> DataError:
    position = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return DataError(
        f"the text holds a lone surrogate (U+{ord(text[position]):04X}) at character {position}",
        where=repr(text[max(0, position - 20) : position + 20]),
        fix="repair the text: a surrogate stands only in UTF-16 pairs",
    )
