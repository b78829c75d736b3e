"""A tokenizer for tiny random models: one letter a token."""

from __future__ import annotations

from collections.abc import Sequence


class LetterTokenizer:
    """One character a token; tokens 1 and 5 both end a turn."""

    stop_token_ids = frozenset({1, 5})

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Letters, without end tokens."""
        return "".join(chr(97 + int(i) % 26) for i in ids if int(i) not in self.stop_token_ids)
