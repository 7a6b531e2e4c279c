"""Read-ahead memory, and how many hosts can share the input: defaults that depend on the machine.

Unlike an order, they may differ between hosts and change between runs without changing the batches."""

from pipeline.errors import OptionError
from pipeline.hosts import Hosts
from pipeline.logs import logger
from pipeline.sizes import format_bytes
from pipeline.sources.records import RecordsInfo

__all__ = ["READ_AHEAD_BYTES", "check_hosts", "training_bytes"]

log = logger("pipeline")

READ_AHEAD_BYTES = 256_000_000
MAX_WINDOW_BYTES = 3 * 1024**3


def check_hosts(records: RecordsInfo, hosts: Hosts, streams: int) -> None:
    """Raises OptionError if there are more hosts than front-read files. Logs it when hosts share streams."""
    if records.whole_files is not None and hosts.count > records.whole_files:
        raise OptionError(
            f"{records.name}: {hosts.count} hosts cannot share {records.whole_files} files that have no index, because "
            "each host needs files of its own. An index lifts this limit: python -m pipeline.index 'DIR/PATTERN' "
            "(compressed files must be rewritten first: python -m converters.tfrecord_to_gcs)."
        )
    if hosts.count > streams:
        log.info(
            "%d hosts share %d streams, so some read the same blocks. With streams=%d on all hosts, none do.",
            *(hosts.count, streams, hosts.count),
        )


def training_bytes(records: RecordsInfo, window_bytes: int) -> int:
    """Bytes to read ahead: enough of this host's windows for large reads, if those pay, or else the usual budget."""
    if not records.remote and records.whole_files is None:
        return READ_AHEAD_BYTES
    if window_bytes > MAX_WINDOW_BYTES:
        log.info(
            "Reading ahead %s of the %s in the shuffle windows: smaller reads, more requests. Raise read_ahead_bytes "
            "to hold all of them, or reduce window_records.",
            *map(format_bytes, (MAX_WINDOW_BYTES, window_bytes)),
        )
    return max(READ_AHEAD_BYTES, min(window_bytes, MAX_WINDOW_BYTES))
