"""A program's calls of a model behind a URL: each call is forwarded to the model's server."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hone.environments.driver import Tools
from hone.errors import UserError
from hone.evaluation.client import Failure
from hone.extensions.agents.calls import SAMPLING_FIELDS, ModelCalls, Reply, refuse_other_sampling
from hone.extensions.server.http import usage
from hone.extensions.server.protocol import ApiError, ChatRequest

if TYPE_CHECKING:
    from hone.evaluation.text import TextModel


class ForwardedCalls(ModelCalls):
    """One program's forwarded calls. Used on the driver's event loop."""

    model: TextModel

    async def begin(self, body: ChatRequest, session: str, again: bool) -> Coroutine[Any, Any, Reply]:
        more = self.model.server.body_of(self.model.place, self.model.asked)
        refuse_other_sampling(body, {name: more[name] for name in SAMPLING_FIELDS if name in more})
        self.check_open()
        self.model.asked += 1
        more = {n: value for n in SAMPLING_FIELDS if (value := getattr(body, n)) is not None} | more
        most = self.most(body.max_completion_tokens or body.max_tokens, more.get("max_tokens"))
        self.sampled += most or 0
        more |= {"max_tokens": most} if most is not None else {}
        stop = more.get("stop") or []
        more |= {"stop": [*([stop] if isinstance(stop, str) else stop), *body.stop]} if body.stop else {}
        tools = body.tools if body.tool_choice != "none" else None
        return self._pass_on(body, self.model.asked - 1, more, tools, session)

    async def _pass_on(self, body: ChatRequest, number: int, more: dict[str, Any], tools: Tools, session: str) -> Reply:
        messages, spent = [message.for_template() for message in body.messages], 0
        try:
            offered = {"tools": tools} if tools else {}
            server = self.model.server
            reply = await server.client.complete(server.name, messages, more | offered, self.model.sample_id)
            if isinstance(reply, Failure):
                self.model.lost = reply.reason
                raise ApiError(502, reply.reason)
            spent = reply.completion_tokens or 0
        except UserError as error:  # no request can succeed
            self.model.driver.fail(error)
            raise
        finally:
            self.sampled += spent - (more.get("max_tokens") or 0)
        self.model.replies.append((session, reply))
        used = usage(reply.prompt_tokens or 0, reply.completion_tokens or 0)
        return f"{self.model.sample_id}-{number}", reply.messages[-1], reply.stop_reason, used

    def close(self, untrained: frozenset[str]) -> int:
        self.closed = True
        self.model.replies = [(who, reply) for who, reply in self.model.replies if who not in untrained]
        return len(self.model.replies)
