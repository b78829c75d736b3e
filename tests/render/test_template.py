from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from burnish.core.errors import DataError, TemplateError
from burnish.core.types import ImagePart, Message, Role, TextPart, ToolCallPart, ToolResultPart
from burnish.render import Renderer, load_tokenizer
from burnish.render.messages import MessageForm, message_dicts
from burnish.render.template import ChatTemplate

from .tiny import CHATML, tiny_folder, tiny_renderer

USER = {"role": "user", "content": "hi"}


def render(source: str, *, date: dt.date = dt.date(2024, 7, 26), **options: object) -> str:
    template = ChatTemplate(source, variables={"bos_token": "<s>"}, options=options, date=date, where="here")
    return template.render([USER], add_generation_prompt=True).text


def test_whitespace_rules_loop_controls_and_variables() -> None:
    source = """{% for m in messages %}
    {% if m.role == 'user' %}
{{ bos_token }}{{ m.content }}
    {% endif %}
    {% break %}
{% endfor %}
{{ add_generation_prompt }}"""
    assert render(source) == "<s>hi\nTrue"


def test_tojson_escapes_no_html_and_keeps_key_order() -> None:
    assert render("{{ x | tojson }}", x={"b": "<é>", "a": 1}) == '{"b": "<é>", "a": 1}'
    assert render("{{ x | tojson(indent=2) }}", x=[1]) == "[\n  1\n]"


def test_clock_stands_still() -> None:
    assert render("{{ strftime_now('%d %b %Y %H:%M') }}") == "26 Jul 2024 00:00"


def test_generation_blocks_give_their_offsets_even_in_macros_and_captures() -> None:
    source = (
        "{% macro say(t) %}{% generation %}{{ t }}{% endgeneration %}{% endmacro %}"
        "A{{ say('bc') }}D{% set x %}{% generation %}ef{% endgeneration %}{% endset %}G{{ x }}H"
    )
    rendered = ChatTemplate(source, variables={}).render([USER])
    assert rendered.text == "AbcDGefH"
    assert [rendered.text[a:b] for a, b in rendered.generation_spans] == ["bc", "ef"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[5].content }}", "UndefinedError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_or_refuses(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        render(source)
    assert "roles: user" in caught.value.where


def test_a_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(TemplateError, match="does not compile") as caught:
        render("line one\n{% if %}")
    assert caught.value.where == "here, template line 2"


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="no chat template") as caught:
        Renderer(load_tokenizer(tiny_folder(tmp_path, template=None)))
    assert caught.value.where == str(tmp_path)


def test_a_template_that_cannot_answer_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="assistants may not speak"):
        tiny_renderer(
            tmp_path,
            template="{% for m in messages %}{% if m.role == 'assistant' %}"
            "{{ raise_exception('assistants may not speak') }}{% endif %}{% endfor %}",
        )


def test_what_a_template_leaves_out_is_refused(tmp_path: Path) -> None:
    users_only = CHATML.replace("{{ '<|im_start|>'", "{% if m['role'] != 'system' %}{{ '<|im_start|>'", 1)
    users_only = users_only.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
    renderer = tiny_renderer(tmp_path, template=users_only)
    with pytest.raises(TemplateError, match="leaves out, without a word: system message"):
        renderer.prompt([Message.of("system", "be kind"), Message.of("user", "hi")])


@pytest.mark.parametrize(
    "message",
    [
        Message(Role.USER, (ImagePart("0" * 64),)),
        Message(Role.USER, (ToolCallPart("f"),)),
        Message(Role.ASSISTANT, (ToolResultPart("x"),)),
        Message(Role.TOOL, (TextPart("x"), ToolResultPart("y"))),
    ],
)
def test_parts_out_of_place_are_refused(message: Message) -> None:
    with pytest.raises(DataError):
        message_dicts([message], (), MessageForm())
