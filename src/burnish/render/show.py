"""A picture of a rendered conversation that an eye can check.

One line a run of tokens with the same provenance; `|` stands between tokens, so a doubled or missing one is
seen. Trained runs are marked with `>>`.
"""

from __future__ import annotations

from itertools import groupby

from burnish.core.types import TokenSource, TokenUse
from burnish.render.spans import Rendered
from burnish.render.tokenizer import TextTokenizer

_VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍", "|": "¦"})


def picture(rendered: Rendered, tokenizer: TextTokenizer, *, max_tokens_a_run: int | None = None) -> str:
    """The conversation as text: mark, token range, source, use, message, tokens.

    A line break shows as ⏎, a tab as ⇥, and a bar in the text as ¦. `max_tokens_a_run`: longer runs show
    their beginning and end and say how much is left out.
    """
    lines: list[str] = []
    keys = list(zip(rendered.source, rendered.use, rendered.message_index, strict=True))
    for (source, use, message), group in groupby(range(len(keys)), key=keys.__getitem__):
        run = list(group)
        mark = ">>" if use == TokenUse.TRAINED else "  "
        label = f"{TokenSource(int(source)).name.lower():8} {TokenUse(int(use)).name.lower():13}"
        owner = "glue" if message < 0 else f"m{int(message)}"
        text = _tokens(rendered, tokenizer, run, max_tokens_a_run)
        lines.append(f"{mark} {run[0]:5}-{run[-1] + 1:<5} {label} {owner:5} {text}")
    for fork in rendered.forks:
        lines.append(f"!! fork  {fork.kind} in m{fork.message_index} at character {fork.position}: {fork.reason}")
    trained = rendered.num_trained
    lines.append(f"== {len(rendered.ids)} tokens, {trained} trained")
    return "\n".join(lines) + "\n"


def _tokens(rendered: Rendered, tokenizer: TextTokenizer, run: list[int], limit: int | None) -> str:
    shown = [tokenizer.token_text(int(rendered.ids[i])).translate(_VISIBLE) for i in run]
    if limit is not None and len(shown) > limit:
        half = max(1, limit // 2)
        shown = [*shown[:half], f"... {len(shown) - 2 * half} tokens ...", *shown[-half:]]
    return "|".join(shown)
