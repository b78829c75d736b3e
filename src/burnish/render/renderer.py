"""Messages -> tokens with provenance, through a model's own chat template.

    prompt(messages)            what a sampler is given
    conversation(messages)      what SFT trains on: one rendering, assistant turns as spans
    examples(messages)          the same, with every assistant turn trained exactly once, forks or not
    extend(ids, before, new)    the tokens between two sampled turns; sampled ids are never encoded again

Shape legend: T tokens. Leaves out choosing what to say (`envs`) and sampling (`rollout`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from burnish.core.errors import DataError, TemplateError
from burnish.core.types import Message, ParseState, Role, TokenSource, TokenUse, ToolSpec, Turn
from burnish.render.grammar import Grammar, parse_reply
from burnish.render.messages import message_dicts, tool_dicts
from burnish.render.probe import probe
from burnish.render.spans import (
    PROBE_MARK,
    Fork,
    ForkKind,
    Rendered,
    Segment,
    Tokens,
    common_length,
    lay_out,
    tokenize,
    turn_end,
    turn_start,
)
from burnish.render.template import DEFAULT_DATE, ChatTemplate, RenderedText
from burnish.render.tokenizer import TextTokenizer

__all__ = ["Extension", "Fork", "Renderer"]

_PROBE_ANSWER = Message.of(Role.ASSISTANT, PROBE_MARK)


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """What follows a sampled turn up to the next generation prompt: `ids` int32 to append, all injected.

    `closes_turn`: the reply had no end token (it was cut), so the first id is that token, injected.
    """

    ids: NDArray[np.int32]
    text: str
    closes_turn: bool = False


class Renderer:
    """Renders for one model.

    `form` and `grammar` are what was found out about the template (`probe`); `opens_reasoning`: replies
    begin inside a reasoning block. `template_options` go to the template as they are (`enable_thinking`). A
    template that writes today's date is told `date`.

    Raises: TemplateError where the model has no chat template, or one that cannot render an answer.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        date: dt.date = DEFAULT_DATE,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        if tokenizer.chat_template is None:
            raise TemplateError(
                "the model has no chat template, so there is no telling where a turn begins or ends",
                where=tokenizer.source,
                fix="add chat_template.jinja to the model folder, or take the model's instruct version",
            )
        self.tokenizer = tokenizer
        self.template_options = dict(template_options or {})
        self.template = ChatTemplate(
            tokenizer.chat_template,
            variables=tokenizer.named_tokens,
            options=template_options,
            date=date,
            where=tokenizer.source,
        )
        found = probe(self.template)
        self.form = found.form
        self.grammar: Grammar | None = found.grammar
        self.opens_reasoning = found.opens_reasoning
        self.drops = found.drops

    @property
    def date(self) -> dt.date:
        """The day the template believes it is."""
        return self.template.date

    def describe(self) -> dict[str, Any]:
        """What a run records about its rendering; plain JSON."""
        return {
            "tokenizer_digest": self.tokenizer.digest,
            "date": self.date.isoformat() if self.template.uses_date else None,
            "template_options": self.template_options,
            "grammar": self.grammar.value if self.grammar else None,
            "tools_in_text": self.form.tools_in_text,
            "calls_in_text": self.form.calls_in_text,
            "reasoning_field": self.form.reasoning_field,
            "stop_token_ids": sorted(self.tokenizer.stop_token_ids),
            "pad_token_id": self.tokenizer.pad_token_id,
        }

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = False
    ) -> RenderedText:
        """Text of a conversation.

        Raises: TemplateError where the template refuses it; DataError where a part has no place in its role.
        """
        if tools and self.grammar is None:
            raise TemplateError(
                "this template writes tool calls in a form that Burnish does not read, so replies with calls "
                "could not be told from text",
                where=self.tokenizer.source,
                fix="describe the tools in the prompt's text instead, or use a model of a supported family: "
                "Qwen2.5, Qwen3, Llama 3.1, DeepSeek V3, gpt-oss",
            )
        self._refuse_dropped(messages)
        return self.template.render(
            message_dicts(messages, tools, self.form),
            tools=None if self.form.tools_in_text else tool_dicts(tools),
            add_generation_prompt=generation_prompt,
        )

    def _refuse_dropped(self, messages: Sequence[Message]) -> None:
        for index, message in enumerate(messages):
            held = {
                "system message": message.role is Role.SYSTEM,
                "tool result": message.role is Role.TOOL,
                "second call of a turn": len(message.tool_calls) > 1,
                "text beside a call": bool(message.tool_calls) and len(message.parts) > len(message.tool_calls),
            }
            lost = [name for name in sorted(self.drops) if held[name]]
            if lost:
                raise TemplateError(
                    f"the chat template leaves out, without a word: {lost[0]}",
                    where=f"{self.tokenizer.source}, message {index}",
                    fix="put it into the conversation otherwise, or use another template",
                )

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Rendered:
        """Tokens that a sampler is given: the messages and the generation prompt.

        Raises: as `text`.
        """
        text = self.text(messages, tools, generation_prompt=True).text
        encoding = self.tokenizer.encode_with_offsets(text)
        ids = np.asarray(encoding.ids, dtype=np.int32)
        starts = np.asarray([start for start, _ in encoding.offsets], dtype=np.int64)
        shape = ids.shape
        return Rendered(
            text,
            ids,
            np.full(shape, TokenSource.PROMPT, np.uint8),
            np.full(shape, TokenUse.IS_PROMPT, np.uint8),
            self._prompt_message_index(messages, tools, text, starts),
            (),
        )

    def _prompt_message_index(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], text: str, starts: NDArray[np.int64]
    ) -> NDArray[np.int16]:
        index = np.full(starts.shape, -1, np.int16)
        done = 0
        for i in range(len(messages)):
            try:
                prefix = self.text(messages[: i + 1], tools).text
            except TemplateError:
                continue  # this prefix cannot stand alone; its text goes to the next message that can
            if text.startswith(prefix):
                index[(starts >= done) & (starts < len(prefix))] = i
                done = len(prefix)
        return index

    def conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        train: Literal["all", "last"] | int = "all",
    ) -> Rendered:
        """A whole conversation; assistant turns are trained through their end token.

        `train`: every assistant turn, the last one, or the one at this message index; the others count as
        prompt. What stands before the first assistant turn is PROMPT, assistant text SAMPLED, the rest
        INJECTED. A turn that the template rewrites once later messages follow is reported in `forks` and not
        trained here.

        Raises: as `text`; TemplateError also where the tokenizer cannot be cut at a turn's border.
        """
        cache: dict[tuple[int, bool], str] = {}

        def prefix(count: int, generation_prompt: bool) -> str:
            key = (count, generation_prompt)
            if key not in cache:
                cache[key] = self.text(messages[:count], tools, generation_prompt=generation_prompt).text
            return cache[key]

        def probe_turn(index: int) -> str:
            return self.text((*messages[:index], _PROBE_ANSWER), tools).text

        layout = lay_out(messages, prefix, probe_turn, self.tokenizer)
        tokens = tokenize(layout, self.tokenizer)
        trained = _trained_messages(messages, train)
        rendered = _label(layout.text, layout.segments, tokens, messages, trained)
        forks = (*layout.forks, *tokens.forks)
        return replace(rendered, forks=forks, marked=self._marked(messages, tools, tokens))

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: Tokens
    ) -> NDArray[np.bool_] | None:
        if not self.template.has_generation_blocks:
            return None
        starts = np.asarray(tokens.starts, np.int64)
        marked = np.zeros(starts.shape, np.bool_)
        for start, end in self.text(messages, tools).generation_spans:
            marked |= (starts >= start) & (starts < end)
        return marked

    def examples(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[Rendered, ...]:
        """Renderings in which every assistant turn is trained exactly once, as it would be sampled.

        One rendering where the template only appends. Where it rewrites earlier turns, a rewritten turn gets
        a rendering of its own that ends with it.

        Raises: as `conversation`.
        """
        result: list[Rendered] = []
        waiting = {i for i, message in enumerate(messages) if message.role is Role.ASSISTANT}
        while waiting:
            last = max(waiting)
            rendered = self.conversation(messages[: last + 1], tools)
            covered = _covered(rendered)
            if last not in covered:
                rendered = self._after_its_prompt(messages[: last + 1], tools, rendered.forks)
                covered = {last}
            extra = covered - waiting
            if extra:
                use = rendered.use.copy()
                use[np.isin(rendered.message_index, sorted(extra)) & (use == TokenUse.TRAINED)] = TokenUse.IS_PROMPT
                rendered = replace(rendered, use=use)
            result.append(rendered)
            waiting -= covered
        return tuple(reversed(result))

    def _after_its_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], forks: tuple[Fork, ...]
    ) -> Rendered:
        """The last turn right after the prompt that its sampler saw, for a template that rewrites the history
        as soon as the turn is there."""
        prompt = self.prompt(messages[:-1], tools)
        finished = self.text(messages, tools).text
        start = self._turn_start(messages, tools, prompt.text, finished)[0]
        reply = finished[start : turn_end(finished, start, self.tokenizer)[1]]
        ids = np.asarray(self.tokenizer.encode(reply), np.int32)
        index = len(messages) - 1
        state = ParseState.CALL if messages[-1].tool_calls else ParseState.NO_CALL
        turn = Turn(len(prompt.ids), len(prompt.ids) + len(ids), Role.ASSISTANT, True, state)
        return Rendered(
            prompt.text + reply,
            np.concatenate([prompt.ids, ids]),
            np.concatenate([prompt.source, np.full(ids.shape, TokenSource.SAMPLED, np.uint8)]),
            np.concatenate([prompt.use, np.full(ids.shape, TokenUse.TRAINED, np.uint8)]),
            np.concatenate([prompt.message_index, np.full(ids.shape, index, np.int16)]),
            (turn,),
            forks,
        )

    def _turn_start(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: str, finished: str
    ) -> tuple[int, ForkKind | None]:
        return turn_start(
            prompt,
            finished,
            lambda: self.text(messages[:-1], tools).text,
            lambda: self.text((*messages[:-1], _PROBE_ANSWER), tools).text,
        )

    def extend(
        self,
        ids_so_far: Sequence[int] | NDArray[np.int32],
        messages_before: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> Extension | Fork:
        """What to append to a trajectory after the reply that ends `messages_before`, so that the policy can
        answer `new_messages`. The ids so far stay as they are: the reply is never encoded again.

        A `Fork` where the template would now write the turns so far otherwise; it carries the full prompt.

        Raises: as `text`; DataError where `messages_before` does not end with an assistant message.
        """
        if not messages_before or messages_before[-1].role is not Role.ASSISTANT:
            raise DataError(
                "a trajectory is extended after an assistant's reply, and these messages end with none",
                fix="pass the reply as the last of messages_before",
            )
        index = len(messages_before) - 1
        prompt = self.text(messages_before[:-1], tools, generation_prompt=True).text
        finished = self.text(messages_before, tools).text
        full = self.text((*messages_before, *new_messages), tools, generation_prompt=True).text

        def fork(kind: ForkKind, position: int, reason: str) -> Fork:
            return Fork(kind, index, position, reason, np.asarray(self.tokenizer.encode(full), np.int32))

        start, kind = self._turn_start(messages_before, tools, prompt, finished)
        if kind is not None:
            position = common_length(prompt, finished)
            was, now = prompt[position : position + 30], finished[position : position + 30]
            return fork(kind, position, f"the prompt had {was!r}, the history now has {now!r}")
        end_from, end = turn_end(finished, start, self.tokenizer)
        if not full.startswith(finished[:end]):
            position = common_length(full, finished[:end])
            was, now = finished[position : position + 30], full[position : position + 30]
            return fork(ForkKind.REWRITTEN_TURN, position, f"the template turns {was!r} into {now!r}")
        last = self.tokenizer.token_text(int(ids_so_far[-1])) if len(ids_so_far) else ""
        written = finished[end_from:end]
        stopped = len(ids_so_far) > 0 and int(ids_so_far[-1]) in self.tokenizer.stop_token_ids
        ended = stopped or last == written or not written
        if stopped and last != written:
            reason = f"the reply ended in {last!r}, the template ends turns in {written!r}"
            return fork(ForkKind.END_TOKEN, end_from, reason)
        delta = full[end if ended else end_from :]
        return Extension(np.asarray(self.tokenizer.encode(delta), np.int32), delta, closes_turn=not ended)

    def parse_reply(self, text: str) -> tuple[Message, ParseState]:
        """The assistant message in a reply's text (`decode_reply`), by this template's grammar. Never raises.

        Where no grammar is known, tools are refused by `prompt`, so a reply is text.
        """
        return parse_reply(text, self.grammar or Grammar.NONE, in_reasoning=self.opens_reasoning)


def _covered(rendered: Rendered) -> set[int]:
    return set(np.unique(rendered.message_index[rendered.use == TokenUse.TRAINED]).tolist())


def _trained_messages(messages: Sequence[Message], train: Literal["all", "last"] | int) -> frozenset[int]:
    assistants = [i for i, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if train == "all":
        return frozenset(assistants)
    if train == "last":
        return frozenset(assistants[-1:])
    if train not in assistants:
        raise DataError(f"message {train} is not an assistant turn", fix=f"choose one of {assistants}")
    return frozenset({train})


def _label(
    text: str,
    segments: Sequence[Segment],
    tokens: Tokens,
    messages: Sequence[Message],
    trained: frozenset[int],
) -> Rendered:
    shape = (len(tokens.ids),)
    source = np.full(shape, TokenSource.PROMPT, np.uint8)
    use = np.full(shape, TokenUse.IS_PROMPT, np.uint8)
    message_index = np.full(shape, -1, np.int16)
    turns: list[Turn] = []
    replied = False
    for segment, start, end in zip(segments, tokens.edges, tokens.edges[1:], strict=False):
        part = slice(start, end)
        message_index[part] = segment.index
        if segment.assistant:
            replied = True
            source[part] = TokenSource.SAMPLED
            use[part] = TokenUse.TRAINED if segment.index in trained else TokenUse.IS_PROMPT
        elif replied:
            source[part] = TokenSource.INJECTED
            use[part] = TokenUse.NOT_ASSISTANT if segment.index < 0 else TokenUse.IS_INJECTED
        if segment.index >= 0:
            message = messages[segment.index]
            state = ParseState.CALL if message.tool_calls else ParseState.NO_CALL
            turns.append(Turn(start, end, message.role, segment.assistant, state))
    ids = np.asarray(tokens.ids, dtype=np.int32)
    return Rendered(text, ids, source, use, message_index, tuple(turns))
