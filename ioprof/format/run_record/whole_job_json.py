"""What is known of all of a job whose run has its last minutes only (`ioprof record --keep`)."""

from ioprof.format.run_record.record import Count, Number, Record


class KindSums(Record, frozen=True):
    """All spans of a kind and source that the job's processes recorded."""

    kind: str | None = None
    """One of `ioprof.format.schema.KINDS`."""
    source: str | None = None
    """Of reads: one of `ioprof.format.schema.SOURCES`. Null: it has none."""
    spans: Count = 0
    bytes: Count = 0
    took_s: Number = 0.0
    """Sum of their times, which may overlap."""


class JobMinutes(Record, frozen=True):
    """A part of the job's time: a minute, or 2, 4, 8 and so on of a job of more than two hours."""

    start_s: Number = 0.0
    """Since the first span of the job."""
    steps: Count = 0
    """Steps that began, of all ranks."""
    step_s: Number = 0.0
    """Sum of their times."""
    wait_s: Number = 0.0
    """Sum of the waits for batches that began."""
    reads: Count = 0
    bytes: Count = 0
    """Of those reads."""
    bytes_from_storage: Count = 0


class WholeJob(Record, frozen=True):
    """All of a job, of which the run's spans, tables and figures are the last part, the window,
    alone.

    The sums are of what the job's processes recorded themselves: no page faults, GPU kernels and
    collectives of NCCL.
    """

    keep_s: Number = 0.0
    """How many seconds were to be kept."""
    window_s: Number = 0.0
    """How long the window is: shorter where the job was. All spans that began in it are in the
    run."""
    job_s: Number = 0.0
    """From the first span of the job to the end of the window."""
    spans: Count = 0
    lost: Count = 0
    """Spans that found no room, of processes whose files were removed."""
    processes_removed: Count = 0
    """Processes that had ended before the window, of which the run has the sums only."""
    steps_left_out: Count = 0
    """Steps that began in the window with a batch that was begun before it. They are not
    analysed."""
    ended: bool = True
    """False: a snapshot of a job that goes on."""
    kinds: tuple[KindSums, ...] = ()
    minutes: tuple[JobMinutes, ...] = ()

    @property
    def is_part(self) -> bool:
        """Whether the job was longer than the window."""
        return self.job_s > self.window_s + 1e-9

    def num_spans(self, kind: str) -> int:
        """How many spans of a kind there were in all of the job."""
        return sum(each.spans for each in self.kinds if each.kind == kind)

    def took_s(self, kind: str) -> float:
        """The sum of their times."""
        return sum(each.took_s for each in self.kinds if each.kind == kind)

    def num_bytes(self, kind: str, source: str | None = None) -> int:
        """Their bytes; of one source, if it is given."""
        return sum(
            each.bytes for each in self.kinds if each.kind == kind and source in (None, each.source)
        )
