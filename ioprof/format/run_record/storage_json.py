"""The part of summary.json on reads: what was read, from where, and which devices delivered it."""

from ioprof.format.run_record.reasons import StoreBound
from ioprof.format.run_record.record import Record


class Delivery(Record, frozen=True):
    """What a device, or the servers of a file system, delivered to one host while the job ran."""

    device: str
    """As in files.parquet: the block devices, e.g. `nvme0n1`, or the name of the file system or
    export."""
    host: str
    file_system: str
    mount_point: str
    kind: str
    """`local`, `shared`, `memory` (a block device on a file in memory) or `unknown`."""
    asked_bytes: int
    """Bytes of the job's reads there, page-cache hits included."""
    delivered_bytes: int | None
    """What came from the device or the servers, readahead and other programs included. Null: see
    `reason`. Above `asked_bytes`: more was read than the job asked for. Below: the page cache
    served the rest."""
    is_at_most: bool
    """Whether `delivered_bytes` is an upper bound: requests were counted by classes of size."""
    reason: str | None


class Stalls(Record, frozen=True):
    """I/O pressure of a host (PSI): how long tasks of any program stalled on I/O while the job ran.
    It mostly omits Lustre.
    """

    host: str
    some_s: float | None
    """Time in which at least one task stalled. High: some program waits for storage."""
    full_s: float | None
    """Time in which all runnable tasks stalled. High: storage is what the host waits for."""
    wall_s: float
    """The time in which that was counted."""


class SlowRead(Record, frozen=True):
    """One of the slowest reads."""

    path: str | None
    seconds: float
    bytes: int | None
    source: str | None
    """One of `ioprof.format.schema.SOURCES`."""
    rank: int | None
    step: int | None
    batch: int | None
    offset: int | None = None
    """Where in the file it began. Null: not known."""
    start_ns: int | None = None
    """When it began, in nanoseconds since the run's zero. Null: an older summary."""


class ReceivedFiles(Record, frozen=True):
    """Files that the job read and that one of its processes had written while it received as much
    from a socket.
    """

    peer: str
    host: str | None
    pid: int | None
    """The process that wrote them."""
    files: int
    bytes: int
    """That it received while the files were open."""


class ObjectStore(Record, frozen=True):
    """Requests of HTTP to one server: an object store, a hub, a web server.

    Those that OpenSSL as a library of its own encrypted are seen, and those that nothing encrypted;
    of HTTP/1.1.
    """

    origin: str
    """Scheme, host and port, as in `https://bucket.s3.amazonaws.com`."""
    requests: int
    bytes: int
    """Of the bodies that were received, without headers."""
    bytes_sent: int
    connections: int
    """That were opened. As many as requests: a handshake for each of them."""
    retries: int
    """Requests that repeat one which failed."""
    errors: int
    """Requests that were answered by a status of 400 or more, or not to the end."""
    took_s: float
    """Time of the downloads, from sending the request to the end of its response, summed over
    them."""
    busy_s: float
    """Time in which threads had at least one of them in progress, summed over the threads."""
    waited_s: float
    """The part of that in which they waited for the server. Low: the client is the bound, by what
    it does with what it has received."""
    first_byte_p50_s: float | None
    """Time to the first byte of a response. High: the server, or the way to it, is slow."""
    first_byte_p95_s: float | None
    bytes_per_s: float | None
    """Mean rate of one connection while a request is in progress."""
    bound: StoreBound | None
    """What takes most of the time of its requests."""
    per_batch: float | None = None
    """Downloads of a batch, mean; of a step where no batch is known. None: of neither."""


class Storage(Record, frozen=True):
    """What was read to make batches, and where the bytes came from; all that was read, in a run
    without batches.
    """

    accesses: int
    bytes: int
    bytes_from_storage: int
    bytes_from_cache: int
    bytes_unknown: int
    read_p50_s: float | None
    read_p95_s: float | None
    read_p99_s: float | None
    slowest: tuple[SlowRead, ...]
    """Up to 10 reads, slowest first."""
    other_accesses: int = 0
    """Reads that made no batch: libraries, start-up, checkpoints."""
    other_bytes: int = 0
    thread_accesses: int = 0
    """Reads by threads of the training process during its steps, of which it is not known whether
    they made batches; neither in `accesses` nor in `other_accesses`."""
    thread_bytes: int = 0
    devices: tuple[Delivery, ...] = ()
    """What the job read from, most bytes first; empty for a run that did not record it."""
    stalls: tuple[Stalls, ...] = ()
    """Per host; empty for a run that did not record it."""
    bytes_socket: int = 0
    """Bytes that all processes of the job received from sockets, apart from messages within the
    job. Not in `bytes`."""
    bytes_pipe: int = 0
    """The same from pipes. What the writing program read from storage, if it is of the job, is in
    `bytes`."""
    received: tuple[ReceivedFiles, ...] = ()
    """By peer and process, most bytes first."""
    stores: tuple[ObjectStore, ...] = ()
    """Servers that were asked by HTTP, most time first. What was received from them is in
    `bytes_socket`, and the slowest requests are in `slowest`."""
    untimed: int = 0
    """Of `accesses`, those without a time of their own, which are not in the percentiles: what the
    page cache had of a call that waited for storage, page faults of which only the end is known,
    asynchronous reads. Percentiles are null if that is all of them."""
