"""A harness that calls the model from verifiers' own process: its agents are no processes, and many are cheap."""

import httpx
import verifiers.v1 as vf


class Direct(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        messages = [one if isinstance(one, dict) else one.model_dump(exclude_none=True) for one in said]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        async with httpx.AsyncClient(timeout=None) as client:
            answer = await client.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        answer.raise_for_status()
        return vf.ProgramResult(0, "", "")


__all__ = ["Direct"]
