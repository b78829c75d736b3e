"""Gold: what the verifier expects, sealed.

Neither the policy, nor its environment, nor a process that executes the model's text holds an opened gold.
The payload is kept as bytes behind a class that does not print, compare, iterate or JSON-encode it; only
`burnish.verify.gold.open_gold` opens it, and an architecture test keeps that import inside `verify`.
This is a seal against accidents in honest code, not a defence against hostile code in the same process:
hostile text runs in `sandbox`, in another process.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

from burnish.core.errors import DataError

GOLD_SCHEMA = 1


class Gold:
    """A sealed expected answer.

    `Gold.seal(payload)` takes any JSON-able payload (answer, spec, hidden tests). `digest` is the SHA-256
    of its canonical JSON. Pickling is allowed (verifier workers need it); printing shows the digest only.
    """

    __slots__ = ("_sealed", "digest")

    def __init__(self, sealed: bytes) -> None:
        self._sealed = sealed
        self.digest = hashlib.sha256(sealed).hexdigest()

    @classmethod
    def seal(cls, payload: Any) -> Gold:
        """Seal a payload.

        Raises: DataError where the payload is not plain JSON (NaN and infinities are refused).
        """
        try:
            text = json.dumps(payload, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return cls(text.encode("utf-8"))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"gold of type {type(payload).__name__} is not plain JSON: {error}",
                fix="give strings, finite numbers, booleans, null, lists and objects",
            ) from None

    def __repr__(self) -> str:
        return f"<sealed gold {self.digest[:12]}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gold) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __iter__(self) -> NoReturn:
        raise TypeError("gold is sealed; it is opened only inside burnish.verify")

    def __reduce__(self) -> tuple[type[Gold], tuple[bytes]]:
        return (Gold, (self._sealed,))
