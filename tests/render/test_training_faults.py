"""Silent training faults seen in public trackers that belong to rendering: each has its invariant here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import DataError, TemplateError
from burnish.core.types import Message, Role, TokenSource, TokenUse, ToolResultPart
from burnish.render import Extension, Fork, ForkKind, Renderer, truncate

from .conftest import PARALLEL_CALLS, PLAIN, REASONING, WEATHER, RendererOf
from .tiny import CHATML, tiny_renderer

USER, ASSISTANT = Role.USER, Role.ASSISTANT
QUESTION = (Message.of(USER, "2+2?"),)
FOLLOW_UP = (Message.of(USER, "sure?"),)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    merges = [("Ċ", "Ċ"), ("4", "2"), ("Ġ", "4")]
    return tiny_renderer(tmp_path_factory.mktemp("tiny"), merges=merges)


# --- decode and re-encode between turns changes ids -> tokens trained are the tokens sampled ----------


def test_sampled_ids_stay_although_they_would_encode_otherwise(tiny: Renderer) -> None:
    tokenizer = tiny.tokenizer
    end = tokenizer.token_id("<|im_end|>")
    sampled = [*tokenizer.encode("4"), *tokenizer.encode("2"), end]  # "42" is one token when encoded anew
    assert tokenizer.encode("42") != sampled[:-1]
    prompt = tiny.prompt(QUESTION).ids
    reply, _ = tiny.parse_reply(tokenizer.decode_reply(sampled))
    assert reply.text == "42"
    step = tiny.extend([*prompt, *sampled], (*QUESTION, reply), FOLLOW_UP)
    assert isinstance(step, Extension)
    assert tokenizer.decode(step.ids) == "\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    whole = tokenizer.decode([*prompt, *sampled, *step.ids])
    assert whole == tiny.prompt((*QUESTION, reply, *FOLLOW_UP)).text


def test_a_cut_reply_is_closed_by_an_injected_end_token(tiny: Renderer) -> None:
    prompt = tiny.prompt(QUESTION).ids
    step = tiny.extend([*prompt, *tiny.tokenizer.encode("4")], (*QUESTION, Message.of(ASSISTANT, "4")), FOLLOW_UP)
    assert isinstance(step, Extension)
    assert step.closes_turn
    assert step.ids[0] == tiny.tokenizer.token_id("<|im_end|>")


def test_a_reply_that_ends_in_another_end_token_forks(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, generation={"eos_token_id": [258, 256]})
    ids = [*renderer.prompt(QUESTION).ids, *renderer.tokenizer.encode("4<|endoftext|>")]
    fork = renderer.extend(ids, (*QUESTION, Message.of(ASSISTANT, "4")), FOLLOW_UP)
    assert isinstance(fork, Fork)
    assert fork.kind is ForkKind.END_TOKEN
    assert "'<|endoftext|>'" in fork.reason


def test_extension_needs_a_reply(tiny: Renderer) -> None:
    with pytest.raises(DataError, match="end with none"):
        tiny.extend([1], QUESTION, FOLLOW_UP)


# --- a template that rewrites earlier turns -> detected; the prefix matches or forks ------------------

NUMBERED = CHATML.replace("m['role'] + '\n'", "m['role'] + ' of ' + (messages | length | string) + '\n'")
LAST_LOUD = CHATML.replace("m['content']", "(m['content'] if loop.last else m['content'] + '!')")


def test_a_rewriting_template_forks_and_carries_the_full_prompt(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, template=LAST_LOUD)
    before = (*QUESTION, Message.of(ASSISTANT, "4"))
    ids = renderer.prompt(QUESTION).ids
    fork = renderer.extend([*ids, *renderer.tokenizer.encode("4<|im_end|>")], before, FOLLOW_UP)
    assert isinstance(fork, Fork)
    assert fork.kind is ForkKind.REWRITTEN_TURN
    assert fork.ids is not None
    assert fork.ids.tolist() == renderer.prompt((*before, *FOLLOW_UP)).ids.tolist()


def test_a_header_that_changes_with_the_length_is_refused(tmp_path: Path) -> None:
    renderer = tiny_renderer(tmp_path, template=NUMBERED)
    with pytest.raises(TemplateError, match="no telling where the reply begins"):
        renderer.conversation((*QUESTION, Message.of(ASSISTANT, "4")))


def test_qwen3_forgets_reasoning_of_earlier_turns_and_says_so(renderer_of: RendererOf) -> None:
    renderer = renderer_of("qwen3")
    full = renderer.conversation(REASONING)
    assert [(fork.kind, fork.message_index) for fork in full.forks] == [(ForkKind.REWRITTEN_TURN, 1)]
    assert "17 + 25 is 42" not in renderer.tokenizer.decode(full.ids[full.use == TokenUse.TRAINED])
    first, second = renderer.examples(REASONING)
    assert "17 + 25 is 42" in renderer.tokenizer.decode(first.ids[first.use == TokenUse.TRAINED])
    assert second.num_trained == full.num_trained


# --- parallel tool results rendered one by one differ -> incremental = full ---------------------------


def test_parallel_results_as_one_message_or_as_two_are_the_same_tokens(renderer_of: RendererOf) -> None:
    one_each = tuple(Message(Role.TOOL, (part,)) for part in PARALLEL_CALLS[2].parts)
    split = (*PARALLEL_CALLS[:2], *one_each, PARALLEL_CALLS[3])
    for family in ("qwen3", "gemma3", "llama3_1", "deepseek_v3", "smollm2"):
        renderer = renderer_of(family)
        together = renderer.conversation(PARALLEL_CALLS, (WEATHER,))
        apart = renderer.conversation(split, (WEATHER,))
        assert together.ids.tolist() == apart.ids.tolist()
        assert together.use.tolist() == apart.use.tolist()


def test_results_appended_one_by_one_would_differ_and_are_caught(renderer_of: RendererOf) -> None:
    renderer = renderer_of("qwen3")
    results = [Message(Role.TOOL, (ToolResultPart(text),)) for text in ("20", "25")]
    text = renderer.text((*PARALLEL_CALLS[:2], *results), (WEATHER,)).text
    assert text.count("<|im_start|>user") == 2  # the question, and both results in one turn


# --- pad == eos, eos as a list, one of several end tokens ---------------------------------------------


def test_end_token_is_trained_although_it_pads(renderer_of: RendererOf) -> None:
    renderer = renderer_of("smollm2")
    assert renderer.tokenizer.pad_token_id in renderer.tokenizer.stop_token_ids
    rendered = renderer.conversation(PLAIN)
    ends = np.flatnonzero(rendered.ids == renderer.tokenizer.pad_token_id)
    trained = [int(rendered.message_index[i]) for i in ends if rendered.use[i] == TokenUse.TRAINED]
    assert trained == [2, 4]
    assert len(ends) == len(PLAIN)


def test_llama_declares_three_end_tokens_and_all_stop(renderer_of: RendererOf) -> None:
    tokenizer = renderer_of("llama3_1").tokenizer
    assert tokenizer.stop_token_ids == {128001, 128008, 128009}
    for token in tokenizer.eos_token_ids:
        assert tokenizer.decode_reply([*tokenizer.encode("yes"), token]) == "yes"


# --- an assistant span cut off by truncation ----------------------------------------------------------


def test_truncation_counts_what_it_takes_and_refuses_to_take_all(tiny: Renderer) -> None:
    rendered = tiny.conversation((*QUESTION, Message.of(ASSISTANT, "because")))
    assert truncate(rendered, len(rendered.ids)).lost_tokens == 0
    first = int(np.flatnonzero(rendered.use == TokenUse.TRAINED)[0])
    for length in range(first + 1, len(rendered.ids)):
        cut = truncate(rendered, length)
        assert cut.rendered.num_trained + cut.lost_tokens == rendered.num_trained
        assert cut.lost_ends == (1 if cut.lost_tokens else 0)
        assert len(cut.rendered.ids) == len(cut.rendered.use) == length
        assert max(turn.end for turn in cut.rendered.turns) <= length
    with pytest.raises(DataError, match="keeps none of its 8 trained tokens") as caught:
        truncate(rendered, first, where="rows.jsonl:7")
    assert caught.value.where == "rows.jsonl:7"
    assert str(first + 8) in caught.value.fix


# --- masks, on any conversation -----------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(text, text), min_size=1, max_size=4))
def test_masks_of_any_conversation(tiny: Renderer, exchanges: list[tuple[str, str]]) -> None:
    messages = tuple(
        Message.of(role, said) for pair in exchanges for role, said in zip((USER, ASSISTANT), pair, strict=True)
    )
    rendered = tiny.conversation(messages)
    trained = rendered.use == TokenUse.TRAINED
    assert (trained == (rendered.source == TokenSource.SAMPLED)).all()
    ids = tiny.prompt(messages[:1]).ids.tolist()
    for index in range(1, len(messages), 2):
        mine = rendered.ids[trained & (rendered.message_index == index)]
        assert tiny.tokenizer.decode(mine) == messages[index].text + "<|im_end|>"
        ids += mine.tolist()
        if index + 1 < len(messages):
            step = tiny.extend(ids, messages[: index + 1], messages[index + 1 : index + 2])
            assert isinstance(step, Extension)
            ids += step.ids.tolist()
    assert rendered.ids[: len(ids)].tolist() == ids  # the same tokens as a rollout would have
    assert tiny.tokenizer.decode(rendered.ids) == rendered.text
    assert {fork.kind for fork in rendered.forks} <= {ForkKind.TOKEN_MERGE}
    assert len(tiny.examples(messages)) == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=12), min_size=2, max_size=2))
def test_odd_text_renders_or_is_refused_by_type(tiny: Renderer, said: list[str]) -> None:
    messages = (Message.of(USER, said[0]), Message.of(ASSISTANT, said[1]))
    surrogate = any("\ud800" <= char <= "\udfff" for piece in said for char in piece)
    if surrogate:
        with pytest.raises(DataError, match="surrogate"):
            tiny.conversation(messages)
    else:
        assert tiny.conversation(messages).num_trained >= 1
