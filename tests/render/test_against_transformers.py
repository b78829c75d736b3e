"""Text and ids equal `apply_chat_template` of transformers, on every family, with tools and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from burnish.render import Renderer
from burnish.render.messages import message_dicts, tool_dicts
from burnish.render.template import ChatTemplate

from .conftest import CONVERSATIONS, PUBLISHED_ENDS, REFUSED, TEMPLATES, RendererOf


@pytest.fixture(scope="session")
def reference_of(family_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """family -> the tokenizer as transformers loads it."""
    transformers = pytest.importorskip("transformers")

    @cache
    def load(family: str) -> Any:
        return transformers.PreTrainedTokenizerFast.from_pretrained(family_folder(family))

    return load


CASES = [
    (family, template, name)
    for family, template in TEMPLATES
    for name in CONVERSATIONS
    if (family, template, name) not in REFUSED
]


@pytest.mark.parametrize(("family", "template", "name"), CASES)
def test_text_and_ids(
    renderer_of: RendererOf,
    reference_of: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    template: str | None,
    name: str,
) -> None:
    renderer, reference = renderer_of(family, template), reference_of(family)
    _stop_the_clock(monkeypatch, renderer)
    messages, tools = CONVERSATIONS[name]
    for count in range(1, len(messages) + 1):
        for generation_prompt in (False, True):
            dicts = message_dicts(messages[:count], tools, renderer.form)
            options = {
                "tools": None if renderer.form.tools_in_text else tool_dicts(tools),
                "chat_template": renderer.tokenizer.chat_template,
                "add_generation_prompt": generation_prompt,
            }
            ours = renderer.text(messages[:count], tools, generation_prompt=generation_prompt).text
            assert ours == reference.apply_chat_template(dicts, tokenize=False, **options)
            ids = reference.apply_chat_template(dicts, tokenize=True, return_dict=True, **options)["input_ids"]
            assert renderer.tokenizer.encode(ours) == ids


def _stop_the_clock(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    from transformers.utils import chat_template_utils

    class Frozen(chat_template_utils.datetime):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.combine(renderer.date, cls.min.time())

    monkeypatch.setattr(chat_template_utils, "datetime", Frozen)
    chat_template_utils._compile_jinja_template.cache_clear()


@pytest.mark.parametrize("family", [*PUBLISHED_ENDS, "smollm2"])
@pytest.mark.parametrize(
    "text", ["naïve 🦜\n\n  two  spaces", "def f(x):\n\treturn x**2  # ∑", " lead", "日本語, עברית"]
)
def test_encode_and_decode(renderer_of: RendererOf, reference_of: Callable[[str], Any], family: str, text: str) -> None:
    ours, reference = renderer_of(family).tokenizer, reference_of(family)
    ids = ours.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False) == text
    assert ours.vocab_size >= len(reference)


@pytest.mark.parametrize("template", ["qwen3_training", "gptoss_training", "llama3_training", "gemma3_training"])
def test_generation_spans(template: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    from .conftest import trl_template

    source = trl_template(template)
    ours = ChatTemplate(source, variables={"bos_token": "<bos>"})
    messages = message_dicts(CONVERSATIONS["plain"][0][1:], (), renderer_form())
    text, spans = utils.render_jinja_template(
        [messages], chat_template=source, return_assistant_tokens_mask=True, bos_token="<bos>"
    )
    rendered = ours.render(messages)
    if not ours.uses_date:
        assert rendered.text == text[0]
    assert [rendered.text[a:b] for a, b in rendered.generation_spans] == [text[0][a:b] for a, b in spans[0]]
    assert rendered.generation_spans


def renderer_form() -> Any:
    from burnish.render.messages import MessageForm

    return MessageForm()
