"""What reading may hold, and how many hosts can share it: where a recipe's defaults meet the machine.

Unlike an order, these may differ between hosts and change between runs: the batches are the same."""

from pipeline.hosts import Hosts
from pipeline.logs import logger
from pipeline.shards.errors import OptionError
from pipeline.shards.sizes import format_bytes
from pipeline.sources.records import Records

__all__ = ["READ_AHEAD_BYTES", "check_hosts", "training_bytes"]

log = logger("pipeline")

READ_AHEAD_BYTES = 256_000_000
MAX_WINDOW_BYTES = 3 * 1024**3


def check_hosts(records: Records, hosts: Hosts, streams: int) -> None:
    """Raises OptionError where hosts are more than files that must be read whole; says where they share streams."""
    if records.whole_files is not None and hosts.count > records.whole_files:
        raise OptionError(
            f"{records.name}: {hosts.count} hosts cannot share {records.whole_files} files that have no index, because "
            "each must have files of its own. Index them, and any number of hosts can: python -m pipeline.index "
            "'DIR/PATTERN' (compressed ones have to be written anew: python -m converters.tfrecord_to_gcs)."
        )
    if hosts.count > streams:
        log.info(
            "%d hosts share %d streams, so that some read the same blocks. With streams=%d, on all of them, each reads "
            "its own.",
            *(hosts.count, streams, hosts.count),
        )


def training_bytes(records: Records, window_bytes: int) -> int:
    """What to read ahead: of this host's windows what must be held for large reads, or else the ordinary budget."""
    if not records.remote and records.whole_files is None:
        return READ_AHEAD_BYTES
    if window_bytes > MAX_WINDOW_BYTES:
        log.info(
            "Reading ahead %s of the %s in the shuffle windows: smaller reads, more requests. Give read_ahead_bytes to "
            "take all, or a smaller window_records.",
            format_bytes(MAX_WINDOW_BYTES),
            format_bytes(window_bytes),
        )
    return max(READ_AHEAD_BYTES, min(window_bytes, MAX_WINDOW_BYTES))
