"""Where each assistant turn lies in the text, and in the tokens.

Shape legend: T tokens of one rendered conversation.

A turn's span runs from the end of the generation prompt, which is where a sampler would have begun, to its
end token, inclusive; what a template writes after the end token (often one line break) is glue and is not
trained. No generation markers are needed: the conversation is rendered up to each turn, with and without it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from burnish.core.errors import TemplateError
from burnish.core.types import Message, ReasoningPart, Role, TokenUse, Turn
from burnish.render.tokenizer import TextTokenizer


class ForkKind(StrEnum):
    """Why incremental and full rendering part."""

    REWRITTEN_TURN = "rewritten_turn"  # later messages change how an earlier turn is written
    GENERATION_PROMPT = "generation_prompt"  # a finished turn does not begin with the prompt a sampler saw
    END_TOKEN = "end_token"  # the reply ended in another end token than the template writes
    DROPPED_TEXT = "dropped_text"  # the template leaves out something that the turn holds
    TOKEN_MERGE = "token_merge"  # in the full text one token reaches across the border of a turn


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """Incremental rendering differs from the full one at character `position`, in message `message_index`.

    `ids`: from `Renderer.extend` only, the template's own full prompt, from which a new trajectory may go on.
    """

    kind: ForkKind
    message_index: int
    position: int
    reason: str
    ids: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A conversation as tokens, with the provenance of each.

    Shapes: arrays are [T]; `ids` int32, `source` and `use` uint8 (`TokenSource`, `TokenUse`), `message_index`
    int16: the message whose turn a token lies in, with what the template writes around it; -1 for glue, which
    belongs to none (headers of assistant turns, line breaks after them). Messages that a template writes as
    one (parallel tool results) carry the index of the last of them; a rewritten turn and the message after
    it are -1, since there is no telling where one ends. `marked`, bool [T]: inside the
    template's own generation blocks, or None where it has none. Turns named in `forks` as rewritten are not
    trained here; `Renderer.examples` trains each where it stands as it would be sampled.
    """

    text: str
    ids: NDArray[np.int32]
    source: NDArray[np.uint8]
    use: NDArray[np.uint8]
    message_index: NDArray[np.int16]
    turns: tuple[Turn, ...]
    forks: tuple[Fork, ...] = ()
    marked: NDArray[np.bool_] | None = None

    @property
    def num_trained(self) -> int:
        """Number of trained tokens."""
        return int((self.use == TokenUse.TRAINED).sum())


@dataclass(frozen=True, slots=True)
class Segment:
    """Characters [start, end) of message `index`; `index` -1 is glue."""

    start: int
    end: int
    index: int
    assistant: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The full text, its segments in order and without gaps, and where rendering forks."""

    text: str
    segments: tuple[Segment, ...]
    forks: tuple[Fork, ...]


RenderPrefix = Callable[[int, bool], str]
"""(number of messages, add the generation prompt) -> text of that prefix of the conversation."""


def common_length(left: str, right: str) -> int:
    """Number of leading characters that two texts share."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def turn_end(text: str, start: int, tokenizer: TextTokenizer) -> tuple[int, int]:
    """Characters [a, b) of the token that ends the turn beginning at `start`: its last end token.

    Where the template writes none of the declared end tokens, the last control token followed by white space
    only; where it writes no control token either, both are the end of the text.
    """
    encoding = tokenizer.encode_with_offsets(text[start:])
    for ids in (tokenizer.stop_token_ids, tokenizer.added_token_ids):
        for token, (a, b) in zip(reversed(encoding.ids), reversed(encoding.offsets), strict=True):
            if token in ids and (ids is tokenizer.stop_token_ids or not text[start + b :].strip()):
                return start + a, start + b
    return len(text), len(text)


PROBE_MARK = "\ue000"
"""The answer of a probe turn: a private-use character, with which no header begins and no template deals."""


def turn_start(
    prompt: str, finished: str, history: Callable[[], str], probe: Callable[[], str]
) -> tuple[int, ForkKind | None]:
    """Where the reply begins in a finished turn, and why that is not right after the sampler's prompt.

    `history()`: the messages before, without a generation prompt. `probe()`: the finished turn with
    `PROBE_MARK` as its answer. GENERATION_PROMPT: the header goes on otherwise. REWRITTEN_TURN: this very
    reply changes how the turns before it are written.

    Raises: TemplateError where there is no telling.
    """
    if finished.startswith(prompt):
        return len(prompt), None
    before, probed = history(), probe()
    if prompt.startswith(before):
        common = common_length(prompt, probed)
        if common >= len(before):
            return common, ForkKind.GENERATION_PROMPT
        header, mark = prompt[len(before) :], probed.find(PROBE_MARK)
        start = probed.rfind(header, 0, max(mark, 0)) + len(header)
        if header and start >= len(header) and finished.startswith(probed[:start]):
            return start, ForkKind.REWRITTEN_TURN
    raise TemplateError(
        "there is no telling where the reply begins: the finished turn does not go on from its prompt",
        where=f"prompt {prompt[-40:]!r}, finished turn {finished[-80:]!r}",
        fix="use a template whose finished turns begin with its generation prompt",
    )


def lay_out(
    messages: Sequence[Message], render: RenderPrefix, probe: Callable[[int], str], tokenizer: TextTokenizer
) -> Layout:
    """Segments of a whole conversation.

    Raises: TemplateError where the template refuses the conversation, or the prompt of one of its turns.
    """
    full = render(len(messages), False)
    segments: list[Segment] = []
    forks: list[Fork] = []
    cursor = 0
    rewritten = False

    def add(end: int, index: int, *, assistant: bool = False) -> None:
        nonlocal cursor
        if end > cursor:
            segments.append(Segment(cursor, end, index, assistant))
            cursor = end

    for i, message in enumerate(messages):
        if message.role is not Role.ASSISTANT:
            border = _border(i + 1, render, full)
            if border is not None:
                add(border, -1 if rewritten else i)
                rewritten = False
            continue
        prompt, finished = render(i, True), render(i + 1, False)
        start, kind = turn_start(prompt, finished, partial(render, i, False), partial(probe, i))
        if kind is not None:
            forks.append(_prompt_fork(kind, i, prompt, finished))
        end = turn_end(finished, start, tokenizer)[1]
        forks.extend(_dropped_forks(i, message, finished, start))
        if kind is ForkKind.REWRITTEN_TURN or not full.startswith(finished[:end]):
            if kind is not ForkKind.REWRITTEN_TURN:
                forks.append(_rewritten_fork(i, finished[:end], full))
            if full.startswith(finished[:start]):
                add(start, -1)
            rewritten = True
            continue
        add(start, -1)
        add(end, i, assistant=True)
        border = _border(i + 1, render, full)
        if border is not None:
            add(border, -1)
    add(len(full), -1)
    return Layout(full, tuple(segments), tuple(forks))


def _border(count: int, render: RenderPrefix, full: str) -> int | None:
    """Where the first `count` messages end in the full text; None where the template cannot say, because it
    refuses the prefix or closes it otherwise."""
    try:
        prefix = render(count, False)
    except TemplateError:
        return None
    return len(prefix) if full.startswith(prefix) else None


def _prompt_fork(kind: ForkKind, index: int, prompt: str, finished: str) -> Fork:
    position = common_length(prompt, finished)
    return Fork(
        kind,
        index,
        position,
        f"a sampler's prompt goes on with {prompt[position : position + 30]!r}, "
        f"the finished turn with {finished[position : position + 30]!r}",
    )


def _dropped_forks(index: int, message: Message, finished: str, start: int) -> list[Fork]:
    written = finished[start:]
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    return [
        Fork(ForkKind.DROPPED_TEXT, index, start, f"the template does not write {text.strip()[:40]!r}")
        for text in (reasoning, message.text)
        if text.strip() not in written
    ]


def _rewritten_fork(index: int, before: str, after: str) -> Fork:
    position = common_length(before, after)
    return Fork(
        ForkKind.REWRITTEN_TURN,
        index,
        position,
        f"once later messages follow, the template writes {after[position : position + 30]!r} "
        f"where the turn itself had {before[position : position + 30]!r}",
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of a layout; `edges[k]` is the token at which segment k begins, with T as the last entry.

    `starts[t]` is the character at which token t begins.
    """

    ids: list[int]
    starts: list[int]
    edges: list[int]
    forks: tuple[Fork, ...]


def tokenize(layout: Layout, tokenizer: TextTokenizer) -> Tokens:
    """Tokens of a layout, such that a rollout of the same conversation has them too: prompt, reply, and what
    `Renderer.extend` puts between two replies.

    That is the encoding of the full text, unless one of its tokens reaches across the border of an assistant
    turn: then each side is encoded by itself, and a TOKEN_MERGE fork says where.

    Raises: TemplateError where the tokenizer cannot be cut at such a border without changing the text.
    """
    encoding = tokenizer.encode_with_offsets(layout.text)
    starts = [start for start, _ in encoding.offsets]
    edges = [bisect_left(starts, segment.start) for segment in layout.segments] + [len(starts)]
    merged: list[Fork] = []
    for segment, edge, next_edge in zip(layout.segments, edges, edges[1:], strict=False):
        if not segment.assistant:
            continue
        for position, index in ((segment.start, edge), (segment.end, next_edge)):
            if not _is_exact(layout.text, encoding.ids, encoding.offsets, position, index, tokenizer):
                reason = f"one token reaches across {layout.text[max(0, position - 8) : position + 8]!r}"
                merged.append(Fork(ForkKind.TOKEN_MERGE, segment.index, position, reason))
    if not merged:
        return Tokens(encoding.ids, starts, edges, ())
    return _tokenize_apart(layout, tokenizer, encoding.ids, tuple(merged))


def _is_exact(
    text: str,
    ids: list[int],
    offsets: list[tuple[int, int]],
    position: int,
    index: int,
    tokenizer: TextTokenizer,
) -> bool:
    """Whether the text up to `position`, encoded by itself, gives the first `index` tokens of the whole."""
    if index == 0 or position == len(text) or ids[index - 1] in tokenizer.added_token_ids:
        return index == 0 or offsets[index - 1][1] <= position
    if offsets[index - 1][1] > position:
        return False
    anchor = index - 1  # control tokens are never merged, so the text from the last one on is enough
    while anchor > 0 and ids[anchor] not in tokenizer.added_token_ids:
        anchor -= 1
    return tokenizer.encode(text[offsets[anchor][0] : position]) == ids[anchor:index]


def _tokenize_apart(layout: Layout, tokenizer: TextTokenizer, whole: list[int], forks: tuple[Fork, ...]) -> Tokens:
    cuts = {0, len(layout.text)}
    for segment in layout.segments:
        if segment.assistant:
            cuts |= {segment.start, segment.end}
    ordered = sorted(cuts)
    ids: list[int] = []
    starts: list[int] = []
    for left, right in pairwise(ordered):
        piece = tokenizer.encode_with_offsets(layout.text[left:right])
        ids += piece.ids
        starts += [left + start for start, _ in piece.offsets]
    if tokenizer.decode(ids) != tokenizer.decode(whole):
        raise TemplateError(
            "the tokenizer cannot be cut where an assistant turn begins: the pieces decode to another text",
            where=f"character {forks[0].position}: {forks[0].reason}",
            fix="use a tokenizer that adds no space of its own, or a template with a control token there",
        )
    edges = [bisect_left(starts, segment.start) for segment in layout.segments] + [len(starts)]
    return Tokens(ids, starts, edges, forks)
