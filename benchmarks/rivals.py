"""What a user would run instead, from transformers: as deep as an ES-SSM, and as large within 5 %."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from es_ssm import LanguageModel, ModelConfig

HEAD = 64  # width of an attention head, as is usual
SYMBOLS = {
    "vocab_size": 258,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def es_ssm(layers: int, length: int, width: int = 512) -> LanguageModel:
    torch.manual_seed(0)
    config = ModelConfig(d_model=width, n_layers=layers, n_filters=32, max_length=length)
    return LanguageModel(config)


def llama(layers: int, length: int, parameters: int) -> nn.Module:
    """Transformer++: rotary positions, SwiGLU, RMSNorm, SDPA."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _transformer(LlamaConfig, LlamaForCausalLM, layers, length, parameters, inner=8 / 3, products=3)


def gpt_neox(layers: int, length: int, parameters: int) -> nn.Module:
    """The recipe of Pythia: rotary positions on a quarter of each head, GELU, parallel residual."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _transformer(GPTNeoXConfig, GPTNeoXForCausalLM, layers, length, parameters, inner=4, products=2)


def _transformer(
    config: Any, model: Any, layers: int, length: int, parameters: int, inner: float, products: int
) -> nn.Module:
    def build(width: int, wide: int) -> nn.Module:
        return model(
            config(
                hidden_size=width,
                intermediate_size=wide,
                num_hidden_layers=layers,
                num_attention_heads=width // HEAD,
                max_position_embeddings=length,
                attn_implementation="sdpa",
                **SYMBOLS,
            )
        )

    return _matched(build, parameters, layers, per_layer=12, inner=inner, products=products)


def mamba2(layers: int, length: int, parameters: int) -> nn.Module:  # noqa: ARG001  one signature for all
    """As transformers runs it where its GPU kernels are absent."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    def build(width: int, _: int) -> nn.Module:
        return Mamba2ForCausalLM(
            Mamba2Config(
                hidden_size=width,
                num_hidden_layers=layers,
                state_size=128,
                expand=2,
                head_dim=HEAD,
                num_heads=2 * width // HEAD,
                n_groups=1,
                **SYMBOLS,
            )
        )

    return _matched(build, parameters, layers, per_layer=6.2, inner=0, products=0)


RIVALS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "Llama": llama,
    "GPT-NeoX": gpt_neox,
    "Mamba-2": mamba2,
}


def _matched(
    build: Callable[[int, int], nn.Module],
    parameters: int,
    layers: int,
    per_layer: float,
    inner: float,
    products: int,
) -> nn.Module:
    """The width that is nearest in whole heads, then an FFN that makes up the difference."""
    unit = HEAD if products else HEAD // 2  # Mamba-2 is twice as wide inside
    width = unit * round((parameters / layers / per_layer) ** 0.5 / unit)
    wide = round(inner * width)
    if products:
        with torch.device("meta"):
            missing = parameters - size(build(width, wide))
        wide = 16 * round((wide + missing / (products * width * layers)) / 16)
    torch.manual_seed(0)
    model = build(width, wide)
    assert abs(size(model) / parameters - 1) < 0.05, (type(model).__name__, size(model), parameters)
    return model


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
