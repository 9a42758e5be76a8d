"""The OpenAI-compatible server: HTTP on asyncio in one thread, the engine in another; `create_app` connects the two."""
