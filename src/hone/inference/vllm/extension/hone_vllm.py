"""What runs inside vLLM's processes: new weights in place, and the path on its server that asks for them.

Found on PYTHONPATH, in an environment that has no hone: imports vLLM's own packages only.
"""
