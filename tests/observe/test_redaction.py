from __future__ import annotations

import pytest

from burnish.observe.redaction import (
    REDACTED,
    names_secret,
    redact_config,
    redact_strings,
    redact_text,
    secret_values,
)


@pytest.mark.parametrize(
    "key",
    ["api_key", "HF_TOKEN", "hubToken", "token", "password", "DB_PASSWORD", "client_secret",
     "AWS_SECRET_ACCESS_KEY", "key", "privateKey", "apikey", "credentials", "OPENAI_API_KEY"],
)  # fmt: skip
def test_keys_that_name_a_secret(key: str) -> None:
    assert names_secret(key)


@pytest.mark.parametrize(
    "key",
    ["max_tokens", "tokens_trained", "pad_token", "eos_token", "stop_token", "tokenizer", "keyboard",
     "primary_key", "sort_key", "monkey", "seconds_per_token", "lr", "stop_token_ids", ""],
)  # fmt: skip
def test_words_of_the_trade_are_no_secrets(key: str) -> None:
    assert not names_secret(key)


def test_config_loses_secrets_and_nothing_else() -> None:
    config = {
        "model": {"path": "hub:org/model", "token": "abc", "pad_token": "<pad>"},
        "judges": [{"url": "https://bot:hunter22@judge.example/v1", "api_key": ["one", "two"], "max_tokens": 9}],
        "token": None,
    }
    assert redact_config(config) == {
        "model": {"path": "hub:org/model", "token": REDACTED, "pad_token": "<pad>"},
        "judges": [{"url": f"https://bot:{REDACTED}@judge.example/v1", "api_key": REDACTED, "max_tokens": 9}],
        "token": None,
    }
    assert config["model"]["token"] == "abc"  # the caller's own copy is untouched


def test_a_number_under_a_bare_word_is_a_weight() -> None:
    config = {"partial_credit": {"keys": 0.25, "token": 1}, "api_key": 12345678, "password": 1234, "key": "abc"}
    assert redact_config(config) == {
        "partial_credit": {"keys": 0.25, "token": 1},
        "api_key": REDACTED,
        "password": REDACTED,
        "key": REDACTED,
    }


def test_values_of_secret_environment_variables_are_found_longest_first() -> None:
    environment = {
        "HF_TOKEN": "s3cret-value",
        "X_PASSWORD": "s3cret-value-longer",
        "A_TOKEN": "short",
        "HOME": "/home/me",
    }
    assert secret_values(environment) == ("s3cret-value-longer", "s3cret-value")


def test_text_loses_given_secrets_and_known_shapes() -> None:
    text = "401 for s3cret-value with hf_" + "a" * 30 + " at redis://:pw@host"
    cleaned = redact_text(text, ["s3cret-value"])
    assert cleaned == f"401 for {REDACTED} with {REDACTED} at redis://:{REDACTED}@host"


def test_addresses_without_passwords_stay() -> None:
    text = 'http://localhost:8000/v1 and "a@b.example", task-' + "a" * 40
    assert redact_text(text) == text


def test_strings_alone_keeps_numbers_under_any_key() -> None:
    assert redact_strings({"x_token": 1.5, "t": ("a-secret-1",)}, ["a-secret-1"]) == {
        "x_token": 1.5,
        "t": [REDACTED],
    }
