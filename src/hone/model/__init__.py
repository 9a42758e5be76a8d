"""The policy: a dense decoder with Hugging Face files in and out, its tokenizer and its chat rendering."""

from hone.model.attention import PackedAttention
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.hf import load_model, save_model

__all__ = ["Decoder", "DecoderConfig", "PackedAttention", "load_model", "save_model"]
