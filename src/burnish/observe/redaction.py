"""Takes secrets out of what is written to a run folder.

Two nets: values under keys that name a secret, and text that has the shape of one or equals a secret in the
environment. `pad_token`, `max_tokens` and their like are words of this trade and stay.

Leaves out secrets under innocent keys in free text that no pattern knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "<redacted>"

_ALWAYS = {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey"}
_KEY_PREFIXES = {"api", "access", "private", "auth", "signing", "encryption", "ssh", "account", "master"}
# A token that follows one of these words is a piece of text, not a password.
_TEXT_TOKENS = {
    "bos", "eos", "pad", "unk", "sep", "cls", "mask", "stop", "end", "start", "image", "video", "audio",
    "first", "last", "next", "per", "special", "turn", "fork", "decoder",
}  # fmt: skip
_BARE_WORDS = {"key", "keys", "token"}  # names of fields as often as of secrets
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_URL_PASSWORD = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*:)[^\s/@\"']+(?=@)", re.IGNORECASE)
# Shorter values ("1", "yes", "test") occur in ordinary text, and taking them out would garble it.
_SHORTEST_SECRET = 8


def names_secret(key: str) -> bool:
    """Whether a config key or environment variable names a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words:
        return False
    if _ALWAYS & set(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in ("key", "keys"):
        return not before or before in _KEY_PREFIXES
    return words[-1] == "token" and before not in _TEXT_TOKENS


def secret_values(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Values of environment variables that name a secret, longest first; the process's own by default."""
    environment = os.environ if environment is None else environment
    found = {v for k, v in environment.items() if names_secret(k) and len(v) >= _SHORTEST_SECRET}
    return tuple(sorted(found, key=len, reverse=True))


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets, well-known token shapes, and passwords in URLs."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    text = _SHAPES.sub(REDACTED, text)
    return _URL_PASSWORD.sub(rf"\g<head>{REDACTED}", text)


def redact_strings(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of plain JSON data with `redact_text` applied to every string value; keys and numbers stay."""
    secrets = tuple(secrets)
    if isinstance(value, Mapping):
        return {key: redact_strings(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_strings(item, secrets) for item in value]
    return redact_text(value, secrets) if isinstance(value, str) else value


def redact_config(value: Any, secrets: Iterable[str] = ()) -> Any:
    """As `redact_strings`, and a value under a key that names a secret is replaced whole."""
    secrets = tuple(secrets)
    if isinstance(value, Mapping):
        return {key: _redact_item(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_config(item, secrets) for item in value]
    return redact_strings(value, secrets)


def _redact_item(key: str, item: Any, secrets: tuple[str, ...]) -> Any:
    # `keys: 0.5` is a weight; `api_key: 12345678` may be a secret.
    is_weight = isinstance(item, (int, float)) and key.lower() in _BARE_WORDS
    if names_secret(key) and item not in (None, "") and not isinstance(item, (bool, Mapping)) and not is_weight:
        return REDACTED
    return redact_config(item, secrets)
