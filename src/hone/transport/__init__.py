"""What the processes of a run in mode split send each other, through a folder that all of them see.

Orchestrator and trainer meet nowhere else; servers take the weights from there. Needs no torch.
"""

from hone.transport.records import Hello, Order, Result, Session
from hone.transport.spool import FileTransport

__all__ = ["FileTransport", "Hello", "Order", "Result", "Session"]
