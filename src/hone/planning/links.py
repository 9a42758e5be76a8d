"""What joins the GPUs of a machine, machines, disks and processes: how fast it is, and where that number comes from.

Peak rates are the makers'; `efficiency` is the share of it that a large transfer reaches. Both are rounded: which link
is the bottleneck is rarely a matter of 20 %, and where it is, measure yours (nccl-tests, fio) and pass own `Links`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hone.planning.devices import Device

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Link:
    """One kind of connection. `peak` is in bytes per second and direction, of whatever `shared_by` says."""

    name: str
    peak: float
    efficiency: float
    shared_by: str
    source: str

    def seconds(self, amount: float) -> float:
        """Seconds that `amount` bytes take through it."""
        return amount / self.rate

    @property
    def rate(self) -> float:
        """Bytes per second that are to be expected."""
        return self.peak * self.efficiency


@dataclass(frozen=True)
class Links:
    """Everything that bytes of a run pass, for one kind of card. `inside` is between the GPUs of one machine, `between`
    between machines, `spool` the folder where batches and weights lie; of several machines `shared_spool`.

    `reduce_scatter` is how often gradients cross a link beyond once: gloo sums them on all ranks (an all-reduce), of
    which each keeps its rows. `overlaps`: collectives go on while the next layer is computed.
    """

    inside: Link
    between: Link
    spool: Link
    shared_spool: Link
    http: Link
    gpus_per_node: int = GPUS_PER_NODE
    reduce_scatter: int = 1
    overlaps: bool = True

    def nodes(self, gpus: int) -> int:
        return -(-gpus // self.gpus_per_node)

    def collectives(self, ranks: int) -> Link:
        """What limits a collective of so many ranks: it goes in rings, each of which leaves every machine once."""
        return self.inside if self.nodes(ranks) == 1 else self.between

    def files(self, gpus: int) -> Link:
        return self.spool if self.nodes(gpus) == 1 else self.shared_spool


def _nvlink(generation: int, gigabytes: float) -> Link:
    source = f"NVIDIA's data sheet: {2 * gigabytes:g} GB/s in both directions; nccl-tests reach about 80 %"
    return Link(f"NVLink {generation}", gigabytes * 1e9, 0.8, "each GPU", source)


def _infiniband(gigabits: int) -> Link:
    source = f"a DGX's eight {gigabits} Gbit/s adapters, one for each GPU; nccl-tests reach about 80 %"
    return Link(f"InfiniBand 8x{gigabits} Gbit/s", gigabits / 8 * 8 * 1e9, 0.8, "a machine", source)


_PCIE4 = Link(
    "PCIe 4.0 x16",
    32e9,
    0.6,
    "each GPU",
    "the standard's 32 GB/s; without NVLink, and on GeForce cards without peer access, copies pass the host's memory",
)
_ETHERNET = Link(
    "Ethernet 100 Gbit/s",
    12.5e9,
    0.8,
    "a machine",
    "a common adapter of rented machines; TCP or RoCE reach about 80 %",
)
_DISK = Link(
    "local disk",
    2e9,
    0.5,
    "a reader or writer",
    "one thread through the page cache; benchmarks/results/transport.json has 0.3 to 0.8 GB/s on two busy cores of a "
    "virtual machine, a server's cores are faster",
)
_NFS = Link(
    "NFS",
    3.125e9,
    0.5,
    "all machines",
    "a file server behind 25 Gbit/s; one thread of a client reaches about half of it",
)
_HTTP = Link(
    "HTTP",
    30e6,
    1.0,
    "the orchestrator",
    "a core of a virtual machine writes 28 MB/s of such JSON and reads 40 MB/s; the wire is never the limit",
)

_GPU = {
    "h200": Links(_nvlink(4, 450), _infiniband(400), _DISK, _NFS, _HTTP),
    "h100": Links(_nvlink(4, 450), _infiniband(400), _DISK, _NFS, _HTTP),
    "b200": Links(_nvlink(5, 900), _infiniband(400), _DISK, _NFS, _HTTP),
    "a100": Links(_nvlink(3, 300), _infiniband(200), _DISK, _NFS, _HTTP),
}
_PCIE = Links(_PCIE4, _ETHERNET, _DISK, _NFS, _HTTP)


def loopback(rate: float = 1e9) -> Links:
    """Processes of one machine without GPUs: gloo over the loopback, at `rate` bytes a second of each rank, measured.

    Nothing overlaps, for what sends and what computes share the cores; and the machine's memory is the spool.
    """
    wire = Link("loopback (gloo)", rate, 1.0, "each rank", "measured by benchmarks/scaling.py; else 1 GB/s")
    return Links(wire, _ETHERNET, _DISK, _NFS, _HTTP, reduce_scatter=2, overlaps=False)


def links_of(device: Device) -> Links:
    """The usual surroundings of a card; PCIe and Ethernet for one that is not known to have more."""
    if device.kind == "cpu":
        return loopback()
    words = device.name.lower()
    if "pcie" in words:
        return _PCIE
    return next((links for name, links in _GPU.items() if name in words), _PCIE)
