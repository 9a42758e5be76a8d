"""The tiny preset's tokenizer: a token for each printable ASCII character, and UTF-8 bytes for everything else.

It is byte-level BPE without merges, so decoding returns any encoded Unicode text unchanged. ChatML's markers and the
end of text are special tokens. Role words, the tags of tasks and the instruction of reverse-text are single tokens but
not special. So decoding writes them, and a reward function sees the tags that the model wrote. The system message lists
the signatures of tools, because schemas are long; calls and tool answers have Qwen's form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from hone.model.files import write_json

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (ENDOFTEXT, IM_START, IM_END)
ROLES = ("system", "user", "assistant")
TAGS = tuple(
    bracket + name + ">"
    for name in ("reversed_text", "think", "answer", "tool_call", "tool_response")
    for bracket in ("<", "</")
)
# Task instructions that never change: a character model would spend 81 positions on this sentence.
INSTRUCTIONS = ("Reverse the text character-by-character. Put your answer in <reversed_text> tags.",)
# Bytes that occur in no UTF-8 text (RFC 3629) need no token.
BYTES = tuple(b for b in range(256) if b not in (0xC0, 0xC1) and b < 0xF5)
VOCAB_SIZE = len(SPECIALS) + len(ROLES) + len(TAGS) + len(INSTRUCTIONS) + len(BYTES)
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = range(3)

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- 'Call a tool by <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' }}
    {%- for tool in tools %}
        {%- set function = tool['function'] %}
        {{- '\\n' + function['name'] + '(' }}
        {%- for name, schema in ((function['parameters'] or {})['properties'] or {}).items() %}
            {{- (', ' if not loop.first else '') + name + ': ' + (schema['type'] or 'any') }}
        {%- endfor %}
        {{- ')' + (': ' + function['description'] if function['description'] else '') }}
    {%- endfor %}
    {{- '<|im_end|>' + '\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}
            {{- '<|im_end|>' + '\\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message['role'] == 'system') %}
        {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '\\n' if message['content'] or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + (call['function']['name'] | tojson) + ', "arguments": ' }}
            {{- (call['function']['arguments'] | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def _byte_characters() -> dict[int, str]:
    """Map each byte to the character that byte-level BPE writes for it (GPT-2's table): itself, or one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def build_tiny_tokenizer() -> Tokenizer:
    """Return the tokenizer. The ids are the same on every machine: words in order, printable bytes, other bytes."""
    characters = _byte_characters()
    words = [*SPECIALS, *ROLES, *TAGS, *INSTRUCTIONS]
    ordered = sorted(BYTES, key=lambda b: (not 0x20 <= b < 0x7F, b))
    vocab = {token: i for i, token in enumerate(words + [characters[b] for b in ordered])}
    assert len(vocab) == VOCAB_SIZE
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, single_word=True) for token in ROLES])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*TAGS, *INSTRUCTIONS)])
    return tokenizer


def tokenizer_config(model_max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": IM_END,
        "pad_token": ENDOFTEXT,
        "additional_special_tokens": [IM_START],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_max_length,
        "chat_template": CHAT_TEMPLATE,
    }


def save_tokenizer(folder: Path | str, model_max_length: int = 1024) -> None:
    """Write tokenizer.json, tokenizer_config.json (with the ChatML template) and special_tokens_map.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    build_tiny_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"eos_token": IM_END, "pad_token": ENDOFTEXT, "additional_special_tokens": [IM_START]}
    write_json(folder / "tokenizer_config.json", tokenizer_config(model_max_length))
    write_json(folder / "special_tokens_map.json", special)
