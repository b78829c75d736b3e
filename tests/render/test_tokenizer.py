from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import DataError, ModelError, TemplateError
from burnish.render import TextTokenizer, load_tokenizer

from .tiny import CHATML, DEFAULTS, tiny_folder

PAD, END = "<|pad|>", "<|im_end|>"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(tiny_folder(tmp_path_factory.mktemp("tiny")))


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_byte_for_byte(tiny: TextTokenizer, text: str) -> None:
    assert tiny.decode(tiny.encode(text)) == text


@settings(deadline=None)
@given(st.lists(st.integers(0, 400)))
def test_any_ids_decode(tiny: TextTokenizer, ids: list[int]) -> None:
    assert isinstance(tiny.decode_reply(ids), str)
    unknown = sum(1 for i in ids if i >= tiny.vocab_size)
    assert tiny.decode(ids).count("\ufffd") >= unknown


def test_lone_surrogate_is_refused_with_its_place(tiny: TextTokenizer) -> None:
    with pytest.raises(DataError, match=r"U\+D83D.*character 3") as caught:
        tiny.encode("abc\ud83d def")
    assert caught.value.fix


def test_special_tokens_are_parsed_and_none_is_added(tiny: TextTokenizer) -> None:
    assert tiny.encode(f"{END}a") == [tiny.token_id(END), *tiny.encode("a")]
    assert tiny.decode(tiny.encode(f"a{END}b")) == f"a{END}b"


def test_reply_loses_the_end_and_padding_after_it_and_nothing_inside(tiny: TextTokenizer) -> None:
    ids = tiny.encode(f"4<|im_start|>2{END}{PAD}{PAD}")
    assert tiny.decode_reply(ids) == "4<|im_start|>2"
    assert tiny.decode_reply([]) == ""


def test_every_declared_end_token_stops(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, generation={"eos_token_id": [256, 258, 259]})
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 257}}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_ids == (258, 256, 259, 257)  # the tokenizer's own first
    assert tokenizer.stop_token_ids == {256, 257, 258, 259}


def test_pad_token_declared_borrowed_and_from_the_model(tmp_path: Path) -> None:
    declared = load_tokenizer(tiny_folder(tmp_path / "a"))
    assert (declared.pad_token_id, declared.pad_is_declared) == (259, True)
    borrowed = load_tokenizer(tiny_folder(tmp_path / "b", config={"eos_token": END}))
    assert (borrowed.pad_token_id, borrowed.pad_is_declared) == (258, False)
    model = load_tokenizer(tiny_folder(tmp_path / "c", config={"eos_token": END}, generation={"pad_token_id": 256}))
    assert (model.pad_token_id, model.pad_is_declared) == (256, True)


def test_template_comes_from_its_file_then_the_config(tmp_path: Path) -> None:
    config = {
        **DEFAULTS,
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
    }
    assert load_tokenizer(tiny_folder(tmp_path / "a", config=config)).chat_template == CHATML
    assert load_tokenizer(tiny_folder(tmp_path / "b", config=config, template=None)).chat_template == "d"
    plain = {**DEFAULTS, "chat_template": "plain"}
    assert load_tokenizer(tiny_folder(tmp_path / "c", config=plain, template=None)).chat_template == "plain"
    assert load_tokenizer(tiny_folder(tmp_path / "d", template=None)).chat_template is None
    with pytest.raises(TemplateError, match="none is called 'default'"):
        load_tokenizer(tiny_folder(tmp_path / "e", config={**config, "chat_template": [{"name": "x"}]}, template=None))


def test_digest_is_of_tokenizer_and_template(tmp_path: Path) -> None:
    one = load_tokenizer(tiny_folder(tmp_path / "a")).digest
    same = load_tokenizer(tiny_folder(tmp_path / "b")).digest
    other_template = load_tokenizer(tiny_folder(tmp_path / "c", template=CHATML + " ")).digest
    other_vocabulary = load_tokenizer(tiny_folder(tmp_path / "d", merges=[("a", "b")])).digest
    assert one == same
    assert len({one, other_template, other_vocabulary}) == 3


def test_vocabulary_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    assert load_tokenizer(folder, model_vocab_size=260).vocab_size == 260
    with pytest.raises(ModelError, match=r"ids up to 259.*256 rows"):
        load_tokenizer(folder, model_vocab_size=256)


def spoil(folder: Path, name: str, text: str | None) -> Path:
    tiny_folder(folder, generation={})
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", None, r"no tokenizer\.json"),
        ("tokenizer.json", '{"version": ', "cannot be read"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("tokenizer_config.json", "[]", "holds no JSON object"),
        ("tokenizer_config.json", "{}", "no end token"),
        ("tokenizer_config.json", '{"eos_token": "<gone>"}', "'<gone>', which tokenizer.json does not have"),
        ("generation_config.json", '{"eos_token_id": [258, 9999]}', r"\[9999\] are not in the vocabulary"),
        (
            "tokenizer_config.json",
            '{"eos_token": "<|im_end|>", "added_tokens_decoder": {"7": {"content": "<|im_end|>"}}}',
            "is 7 in tokenizer_config.json and 258",
        ),
    ],
)
def test_broken_folders(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(spoil(tmp_path, name, text))
    assert str(tmp_path) in caught.value.where
    assert caught.value.fix
