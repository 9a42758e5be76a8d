"""The requests of clients. Every field is checked; unknown or unsupported fields are refused.

An OpenAI field without effect here is accepted if its value means "off", because some clients always send it. Fields
beyond OpenAI's: `top_k`, `min_p`, `stop_token_ids`, `ignore_eos`, `return_token_ids`, `return_kept_ids`,
`prompt_logprobs`, `key`.

A key decides a sample's randomness. In a request with `seed` s, sample i of prompt p has the key `rng.key(s,
"generate", p, i)`. `Engine.generate` uses the same keys, so it samples the same tokens. RL sends the keys of its
rollouts, `rng.key(seed, "rollout", step, draw, sample)`, in `key`: one for each sample of the request.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hone import rng
from hone.inference.types import Job, SamplingParams
from hone.model.strict_json import DECODER

# The bounds of a request. Later, with the model, token ids are checked against the vocabulary, and a prompt with its
# new tokens against the context.
MAX_SAMPLES = 4096
"""Most samples of a request (prompts x n). A request has at most this number of prompts or keys, too."""
Count = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Key = Annotated[int, Field(ge=0, lt=2**64)]
Top = Annotated[int, Field(ge=0, le=20)]
Name = Annotated[str, Field(max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Zero = Annotated[float, Field(ge=0, le=0)]
Empty = Annotated[str, Field(max_length=0)]

OFF = (
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "suffix",
    "best_of",
    "response_format",
    "tool_choice",
    "sampling_params.frequency_penalty",
    "sampling_params.presence_penalty",
    "sampling_params.logit_bias",
    "sampling_params.min_tokens",
    "sampling_params.prompt_logprobs",
    "sampling_params.repetition_penalty",
    "features",
    "kv_transfer_params",
    "priority",
)
"""Fields that are accepted only with a value that has no effect."""
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class ApiError(Exception):
    """An error, which is sent in the form that OpenAI clients expect."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


FAILED = "the server failed at this request"


class ServiceEnded(ApiError):
    """Raised if the engine's thread has ended."""

    def __init__(self) -> None:
        super().__init__(503, "the server is stopping")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextFormat(Strict):
    type: Literal["text"]


class Sampling(Strict):
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    seed: Seed | None = None
    stop: list[Stop] | None = Field(default=None, max_length=32)
    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    stop_token_ids: list[Count] = Field(default=[], max_length=256)
    ignore_eos: bool = False
    return_kept_ids: bool = False
    key: list[Key] | None = Field(default=None, max_length=MAX_SAMPLES)
    # No effect here:
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)

    @field_validator("key", "stop", mode="before")
    @classmethod
    def _list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, int | str) else value

    def jobs(
        self, prompts: list[list[int]], max_tokens: int, seed: int, top: int, stop_ids: tuple[int, ...] = ()
    ) -> list[Job]:
        """Return `n` jobs for the first prompt, then `n` for the next, and so on. `seed` is the default seed."""
        samples, keys = len(prompts) * self.n, self.key
        if samples > MAX_SAMPLES:
            words = f"{len(prompts)} prompts with n = {self.n} are over {MAX_SAMPLES} samples: send fewer"
            raise ApiError(400, words, "n")
        if keys is not None and (self.seed is not None or samples != len(keys)):
            words = "key needs one number for each sample, in the order of choices, and no seed"
            raise ApiError(400, f"{words}: {len(keys)} were sent for {samples} samples", "key")
        params = SamplingParams(
            max_tokens=max(1, max_tokens),  # unused: jobs have max_tokens; 0 is not run
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            n=self.n,
            seed=seed if self.seed is None else self.seed,
            stop=tuple(dict.fromkeys((*self.stop_token_ids, *stop_ids, *(self.stop or ())))),
            ignore_eos=self.ignore_eos,
            top_logprobs=top,
            return_kept_ids=self.return_kept_ids,
        )
        return [
            Job(
                prompt,
                rng.key(params.seed, "generate", p, i) if keys is None else keys[p * self.n + i],
                max_tokens,
                params,
            )
            for p, prompt in enumerate(map(tuple, prompts))
            for i in range(self.n)
        ]


class GenerationRequest(Sampling):
    model: Name | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    # No effect here:
    user: Name | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Name | None = None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Any
    max_tokens: Count | None = 16
    logprobs: Top | None = None
    prompt_logprobs: Top | None = None
    echo: bool | None = None
    suffix: Empty | None = None
    best_of: int | None = Field(default=None, ge=1, le=1)

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        prompts = len(self.prompts())
        if prompts > MAX_SAMPLES:
            raise ApiError(400, f"{prompts} prompts are over {MAX_SAMPLES} samples: send fewer", "prompt")
        about_prompts = self.echo or self.prompt_logprobs is not None
        if about_prompts and self.stream:
            raise ApiError(400, "echo and prompt_logprobs can't be streamed: leave out stream", "stream")
        if self.max_tokens == 0 and not about_prompts:
            raise ApiError(400, "max_tokens = 0 asks for no token: send at least 1, or add echo or prompt_logprobs")
        return self

    def prompts(self) -> list[str | list[int]]:
        def is_ids(item: Any) -> bool:
            return isinstance(item, list) and all(type(x) is int for x in item)

        prompt = self.prompt
        if isinstance(prompt, str) or (prompt and is_ids(prompt)):
            return [prompt]
        if isinstance(prompt, list) and prompt and all(isinstance(item, str) or is_ids(item) for item in prompt):
            return prompt
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of texts or of such lists", "prompt")


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str | None = None
    function: CalledFunction


class ChatMessage(BaseModel):
    """One message. Clients send replies back, so fields unknown here are accepted if they are null or empty."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a part of the content is not text: only text is supported")
        return "".join(map(str, texts))

    @model_validator(mode="after")
    def _check(self) -> ChatMessage:
        unknown = next((name for name, x in (self.model_extra or {}).items() if x not in (None, "", [], {})), None)
        if unknown is not None:
            raise ValueError(f"{unknown[:80]} is not supported here: leave it out")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant has tool_calls")
        # some clients drop the empty content of a reply
        if self.content is None and not self.tool_calls and self.role != "assistant":
            raise ValueError("the message has no content: give a text")
        return self

    def for_template(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        if self.role == "tool":
            message |= self.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
        if self.tool_calls:
            message["tool_calls"] = [{"type": "function", **call.model_dump()} for call in self.tool_calls]
        return message


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_tokens: Count | None = Field(default=None, ge=1)
    max_completion_tokens: Count | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    response_format: TextFormat | None = None
    tools: list[Any] | None = Field(default=None, max_length=512)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: Any = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs = true", "top_logprobs")
        for index, tool in enumerate(self.tools or []):
            function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                known = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
                raise ApiError(400, f"tools[{index}] is no function: give {known}", "tools")
        return self


class TokensSampling(Sampling):
    """The supported fields of vLLM's `SamplingParams`; fields about text have no effect."""

    max_tokens: Count | None = Field(default=None, ge=1)
    logprobs: Top | None = None
    prompt_logprobs: None = None
    min_tokens: Literal[0] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=1)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    detokenize: bool | None = None


class TokensRequest(Strict):
    """`POST /inference/v1/generate`, as in vLLM: continues token ids. `cache_salt` does not change the samples."""

    token_ids: list[Count] = Field(min_length=1)
    sampling_params: TokensSampling
    request_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    model: Name | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: Name | None = None
    priority: Literal[0] | None = None
    features: None = None
    kv_transfer_params: None = None


class UpdateRequest(Strict):
    """`POST /update_weights`."""

    path: str = Field(min_length=1, max_length=4096)
    version: int = Field(ge=0, lt=2**63)


def parse(cls: type[Strict], body: bytes) -> Any:
    """Parse and check the request in `body`. Raises ApiError 400 for the first problem."""
    try:
        return cls.model_validate(_json_object(body))
    except ValidationError as errors:
        all_errors = errors.errors(include_url=False, include_context=False, include_input=False)
        # A misspelt field is also missing under its right name: report the misspelling first.
        error = next((error for error in all_errors if error["type"] == "extra_forbidden"), all_errors[0])
    name = ".".join(str(part)[:80] for part in error["loc"])
    reason = f"{name}: {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "extra_forbidden":
        known = {(): cls.model_fields, ("sampling_params",): TokensSampling.model_fields}.get(error["loc"][:-1], {})
        close = get_close_matches(str(error["loc"][-1]), known, n=1)
        reason = f"{name} is not a field of this request: {f'did you mean {close[0]}?' if close else 'leave it out'}"
    elif error["type"] == "missing":
        reason = f"{name} is missing"
    elif error["loc"][0] in OFF or name in OFF:
        reason = f"{name} is not supported here with this value: leave it out"
    raise ApiError(400, reason, name)


def _json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`. Raises ApiError 400 unless it is UTF-8 with unique keys and finite numbers."""
    try:
        value = DECODER.decode(body.decode())
        if _HALF_PAIR.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is not valid JSON: it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except ValueError as error:
        # Python refuses numbers of thousands of digits, with advice for programmers.
        reason = "a number is out of range" if "int_max_str_digits" in str(error) else str(error)
        raise ApiError(400, f"the body cannot be read: {reason}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value
