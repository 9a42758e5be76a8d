"""With this folder in PYTHONPATH, a process that imports torch has the fake GPU, and so have those that it starts.

Triton seems to be there, but nothing can be compiled: that takes `torch.compiler.set_stance("force_eager")`.
"""

import atexit
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any


class _WithGpu(Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        sys.path.append(str(Path(__file__).parents[1]))
        from fake_cuda import FakeCuda

        sys.path.pop()
        import torch.utils._triton

        torch.utils._triton.has_triton = lambda: True
        there = FakeCuda().there()
        there.__enter__()
        atexit.register(there.__exit__, None, None, None)


class _Torch(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _WithGpu(spec.loader)
        return spec


sys.meta_path.insert(0, _Torch())
