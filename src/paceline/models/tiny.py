"""A random tiny model as a Hugging Face directory, with a small real tokenizer: for tests, dry runs and examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from paceline.models.slim import SlimDecoder
from paceline.models.store import write_tensors

Family = Literal["llama", "qwen2", "qwen3"]
SPECIAL = ("<|endoftext|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
"""Ids 0 to 4: padding, begin, end, turn start, turn end."""
_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("l", "o"), ("Ġ", "t"), ("t", "h"), ("th", "e"), ("1", "0"), ("a", "n")]
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny(
    directory: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    family: Family = "llama",
    dtype: str = "float32",
    tied: bool = True,
    **config: Any,
) -> Path:
    """Write config, weights and tokenizer into `directory` (created) and return it. Equal arguments give equal weights.

    Weights are large enough that logits spread by about 1 and every bias and norm matters. `config` goes to the
    transformers config, e.g. `rope_parameters`.
    """
    tokenizer = tiny_tokenizer()
    settings = AutoConfig.for_model(
        family,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width // heads,
            "max_position_embeddings": 512,
            "tie_word_embeddings": tied,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family] + "ForCausalLM"],
            "dtype": dtype,
            **config,
        },
    )
    model = SlimDecoder(settings, compute=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            centre, spread = (1.0, 0.1) if "norm" in name else (0.0, 0.2)
            tensor.normal_(centre, spread, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    write_tensors(model.named_parameters(), directory / "model.safetensors", getattr(torch, dtype))
    return directory


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level pieces, ten merges (so that text has several encodings) and a ChatML template; every text round-trips."""
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in _MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        additional_special_tokens=list(SPECIAL[3:]),
        chat_template=_CHAT,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
