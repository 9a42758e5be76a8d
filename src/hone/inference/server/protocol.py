"""What a client may send. Every field is checked; a field that hone does not know or cannot honour is refused.

Fields of OpenAI's that have no effect here are accepted at the value that means "off", so that clients which always
send them work. hone's own: `top_k`, `min_p`, `stop_token_ids`, `ignore_eos`, `return_token_ids`, `prompt_logprobs`,
`key`.

A sample's randomness has one address. Sample i of prompt p of a request with `seed` s has the key
`rng.key(s, "generate", p, i)`, as in `Engine.generate`, so both give the same tokens. RL's rollouts have
`rng.key(seed, "rollout", step, draw, sample)`; such keys are sent as `key`, one for each sample of the request.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hone import rng
from hone.errors import UserError
from hone.inference.types import Job, SamplingParams
from hone.model.strict_json import DECODER, MAX_DEPTH, shallow

# The bounds of what a request may hold. Token ids must also be in the vocabulary, and a prompt with its new tokens in
# the model's context; both are checked when the model is at hand.
MAX_SAMPLES = 4096
"""Samples of one request (prompts x n), and so its prompts, and its keys."""
MAX_STOP_IDS = 256
MAX_STOPS, MAX_STOP_CHARS = 32, 256
MAX_MESSAGES, MAX_TOOLS = 4096, 512
MAX_NAME, MAX_PATH = 256, 4096
"""Characters."""
MAX_TEMPERATURE = 1000.0
Count = Annotated[int, Field(ge=0, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Key = Annotated[int, Field(ge=0, lt=2**64)]
Version = Annotated[int, Field(ge=0, lt=2**63)]
Top = Annotated[int, Field(ge=0, le=20)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Stop = Annotated[str, Field(max_length=MAX_STOP_CHARS)]

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id"}
OFF: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "none", "auto"),
}
"""Fields that are accepted at these values only."""
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class ServiceEnded(Exception):
    """The engine's thread has ended, so nothing can be asked of it."""


class SampleFailed(Exception):
    """The engine dropped a sample; the message is the reason."""


class ApiError(Exception):
    """An answer that is no success, in the form that OpenAI's clients expect."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class GenerationRequest(Strict):
    """What both kinds of request share."""

    model: Name | None = None
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    seed: Seed | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    stop_token_ids: list[TokenId] = Field(default=[], max_length=MAX_STOP_IDS)
    ignore_eos: bool = False
    return_token_ids: bool = False
    key: list[Key] | None = Field(default=None, max_length=MAX_SAMPLES)
    # Of no effect here.
    user: Name | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Name | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @field_validator("key", "stop", mode="before")
    @classmethod
    def _list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, int | str) else value

    @property
    def stops(self) -> list[str]:
        return self.stop or []

    def check(self) -> None:
        for name, values in OFF.items():
            if getattr(self, name, None) not in values:
                known = " or ".join(json.dumps(value) for value in values if value is not None)
                raise ApiError(400, f"{name} is not supported here but for {known}: leave it out", name)
        if any(not stop for stop in self.stops):
            raise ApiError(400, "a stop string is empty: give at least one character", "stop")

    def jobs(
        self, prompts: list[list[int]], max_tokens: int, seed: int, top: int, stop_ids: tuple[int, ...] = ()
    ) -> list[Job]:
        """Return the jobs of the request, `n` for each prompt in turn. `seed` is the one to use where none was sent."""
        if len(prompts) * self.n > MAX_SAMPLES:
            raise ApiError(
                400, f"{len(prompts)} prompts of n = {self.n} are over {MAX_SAMPLES} samples: send fewer", "n"
            )
        keys = self.key
        if keys is not None and (self.seed is not None or len(prompts) * self.n != len(keys)):
            raise ApiError(
                400,
                f"key has one number for each sample, in the order of the choices, and goes without seed: "
                f"{len(keys)} were sent for {len(prompts) * self.n} samples",
                "key",
            )
        params = SamplingParams(
            max_tokens=max(1, max_tokens),  # a job's own counts; none of 0 is run
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            n=self.n,
            seed=seed if self.seed is None else self.seed,
            stop=tuple(dict.fromkeys((*self.stop_token_ids, *stop_ids))),
            ignore_eos=self.ignore_eos,
            top_logprobs=top,
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


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Any
    max_tokens: Count | None = 16
    logprobs: Top | None = None
    prompt_logprobs: Top | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Count | None = None

    @property
    def about_prompts(self) -> bool:
        """Return True if the answer repeats or scores what was sent."""
        return bool(self.echo) or self.prompt_logprobs is not None

    def check(self) -> None:
        super().check()
        prompts = len(self.prompts())
        if prompts > MAX_SAMPLES:
            raise ApiError(400, f"{prompts} prompts are over {MAX_SAMPLES} samples: send fewer", "prompt")
        if self.about_prompts and self.stream:
            raise ApiError(400, "an answer about the prompt comes whole: leave out stream", "stream")
        if self.max_tokens == 0 and not self.about_prompts:
            raise ApiError(400, "max_tokens = 0 asks for nothing: send at least 1, or echo or prompt_logprobs with it")

    def prompts(self) -> list[str | list[int]]:
        """Return one or several prompts, each a text or a list of token ids."""

        def is_ids(item: Any) -> bool:
            return isinstance(item, list) and all(type(x) is int for x in item)

        prompt = self.prompt
        if isinstance(prompt, str) or (prompt and is_ids(prompt)):
            return [prompt]
        if isinstance(prompt, list) and prompt and all(isinstance(item, str) or is_ids(item) for item in prompt):
            return prompt
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of one kind of these", "prompt")


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: Count | None = Field(default=None, ge=1)
    max_completion_tokens: Count | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: Any = None

    def check(self) -> None:
        super().check()
        for name in ("messages", "tools"):
            if not shallow(getattr(self, name)):
                raise ApiError(400, f"{name} is nested more than {MAX_DEPTH} levels deep", name)
        for index, tool in enumerate(self.tools or []):
            function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                known = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
                raise ApiError(400, f"tools[{index}] is no function: give {known}", "tools")

    @property
    def reads_calls(self) -> bool:
        """Return True if the answer is to be looked through for calls of the tools."""
        return bool(self.tools) and self.tool_choice != "none"

    def conversation(self) -> list[dict[str, Any]]:
        """Return the messages, with text in parts joined."""
        return [_message(i, message) for i, message in enumerate(self.messages)]


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return one message as chat templates take it. Raises ApiError 400 for what they would stumble over."""

    def refused(words: str) -> ApiError:
        return ApiError(400, f"messages[{index}]{words}", "messages")

    role, content, calls = (message.get(key) for key in ("role", "content", "tool_calls"))
    if role not in ROLES:
        sent = "no role" if role is None else f"the role {str(role)[:40]!r}"
        raise refused(f" has {sent}: give one of {', '.join(ROLES)}")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise refused(" has a part that is no text: only text is supported")
        content = "".join(map(str, texts))
    if calls is not None and (role != "assistant" or not isinstance(calls, list)):
        raise refused(".tool_calls is not a list of calls of the assistant")
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise refused(" has no content: give a text")
    # Clients send back what they got, with fields that are null or empty.
    unknown = next(
        (k for k, value in message.items() if k not in MESSAGE_FIELDS and value not in (None, "", [], {})), None
    )
    if unknown is not None:
        raise refused(f".{unknown[:80]} is not supported here: leave it out")
    for key in ("name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            raise refused(f".{key} is no text")
    made: dict[str, Any] = {"role": role, "content": content}
    if role == "tool":
        made |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key) is not None}
    for call in calls or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(isinstance(function.get(k), str) for k in ("name", "arguments")):
            raise refused(".tool_calls has a call without the texts function.name and function.arguments: give both")
        if not isinstance(call.get("id"), str | None):
            raise refused(".tool_calls has an id that is no text")
        made.setdefault("tool_calls", []).append({"id": call.get("id"), "type": "function", "function": function})
    return made


class UpdateRequest(Strict):
    """`POST /update_weights`."""

    path: str = Field(min_length=1, max_length=MAX_PATH)
    version: Version


def parse(cls: type[Strict], body: bytes) -> Any:
    """Parse and check the request in `body`. Raises ApiError 400 that names the first thing that is wrong."""
    try:
        return cls.model_validate(_json_object(body))
    except ValidationError as errors:
        all_errors = errors.errors(include_url=False, include_context=False, include_input=False)
        # A misspelt field is missing under its right name: say how it is spelt first.
        error = next((error for error in all_errors if error["type"] == "extra_forbidden"), all_errors[0])
    name = ".".join(str(part)[:80] for part in error["loc"])
    if error["type"] == "extra_forbidden":
        close = get_close_matches(name, cls.model_fields, n=1)
        remedy = f"did you mean {close[0]}?" if close else "leave it out"
        raise ApiError(400, f"{name} is not a field of this request: {remedy}", name)
    if error["type"] == "missing":
        raise ApiError(400, f"{name} is missing", name)
    raise ApiError(400, f"{name}: {error['msg']}" if name else error["msg"], name or None)


def _json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`: UTF-8, no key twice, only finite numbers. Raises ApiError 400."""
    try:
        value = DECODER.decode(body.decode())
        if _HALF_PAIR.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is not valid JSON: it is nested too deep") from None
    except (json.JSONDecodeError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except ValueError as error:
        # Python refuses to read a number of thousands of digits, with advice for programmers.
        reason = "a number is out of range" if "int_max_str_digits" in str(error) else str(error)
        raise ApiError(400, f"the body cannot be read: {reason}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def as_api_error(error: Exception) -> ApiError:
    """Return what a client gets to know of an error: all of it if it is the client's, else that it is the server's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    if isinstance(error, ServiceEnded):
        return ApiError(503, "the server is stopping")
    if isinstance(error, SampleFailed):
        return ApiError(500, f"the server failed at this request: {error}")
    return ApiError(500, "the server failed at this request; its log says why")
