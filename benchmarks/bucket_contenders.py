"""One contender of bench_buckets, in a process of its own: reads a bucket of the slow server once, says what that took.

    python -m benchmarks.bucket_contenders NAME BUCKET STREAMS

AWS_ENDPOINT_URL says where the bucket is. The last line is JSON, as in reading_contenders; the clock starts after the
imports, so that opening the dataset counts. Peers get a worker for each stream, because a worker of theirs downloads
one file at a time, and an empty cache."""

import functools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

from benchmarks.reading_contenders import BATCH, Run, infeed, measured, training_order

__all__ = ["CONTENDERS", "Contender"]

RANGE_BYTES = 4 * 1024**2
XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Contender(NamedTuple):
    """The format it reads, what it imports, and how to make ready: (bucket, streams) -> what is measured."""

    format: str
    imports: str
    prepare: Callable[[str, int], Run]


def ours(bucket: str, _: int, order: Callable[[Any], Iterator[Any]]) -> Run:
    """What an Input reads, with blocks of neighbouring records as in large data."""
    return infeed(f"s3://{bucket}", order)


def large(records: Any) -> Iterator[Any]:
    """The training order of data too large for memory: blocks of 1 MB, each read once.

    The windows are smaller than by default (2 of 32 blocks per stream), as the data is, so that
    they fit in what is read ahead. With the default, that is up to 3 GiB, more than all of this."""
    from pipeline.orders.shuffle import default_block_records

    block = default_block_records(records.info.num_bytes / records.num_records, 10**9)
    return training_order(records, block, 2 * block)


def evaluation(records: Any) -> Iterator[Any]:
    """The order of the data."""
    import numpy as np

    return (
        np.arange(begin, begin + BATCH)
        for begin in range(0, records.num_records - BATCH + 1, BATCH)
    )


def listed(bucket: str) -> list[tuple[str, int, int]]:
    """(key, begin, end) of ranges that cover all objects."""
    connection = HTTPConnection(urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc)
    connection.request("GET", f"/{bucket}?list-type=2")
    found = ElementTree.fromstring(connection.getresponse().read())
    sizes = {
        each.findtext(f"{XML}Key", ""): int(each.findtext(f"{XML}Size", ""))
        for each in found.iter(f"{XML}Contents")
    }
    return [
        (key, begin, min(begin + RANGE_BYTES, size))
        for key, size in sizes.items()
        for begin in range(0, size, RANGE_BYTES)
    ]


def bare(bucket: str, streams: int) -> Run:
    """The limit: as many threads as streams, each with a connection, ranges of 4 MiB, nothing checked or kept."""

    def run() -> Iterator[int]:
        ranges = listed(bucket)

        def work() -> None:
            connection = HTTPConnection(urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc)
            while ranges:
                try:
                    key, begin, end = ranges.pop()
                except IndexError:
                    return
                headers = {"Range": f"bytes={begin}-{end - 1}"}
                connection.request("GET", f"/{bucket}/{key}", headers=headers)
                if len(connection.getresponse().read()) != end - begin:
                    raise SystemExit("a short response")

        threads = [threading.Thread(target=work) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield 0

    return run


def ranges_of(bucket: str, _: int, scheme: str) -> Run:
    """The same ranges by a Storage, in order, nothing checked or kept."""
    from pipeline.storage.schemes import open_storage

    os.environ["STORAGE_EMULATOR_HOST"] = os.environ["AWS_ENDPOINT_URL"]
    storage = open_storage(f"{scheme}://{bucket}")

    def run() -> Iterator[int]:
        places = (
            (f"{scheme}://{bucket}/{key}", begin, end - begin) for key, begin, end in listed(bucket)
        )
        for _data in storage.read_ranges(places):
            pass
        yield 0

    return run


def mosaic(bucket: str, streams: int) -> Run:
    """Its default shuffle, py1e, over one node."""
    import torch.utils.data
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]

    def run() -> Iterator[int]:
        dataset = StreamingDataset(
            remote=f"s3://{bucket}",
            local=f"{tempfile.mkdtemp()}/cache",
            shuffle=True,
            batch_size=BATCH,
            num_canonical_nodes=1,
        )
        # Its workers are forked and would share the connection that read index.json. Over http:// they then read each
        # other's responses: none of 7 runs finished, and a shard on disk held other bytes.
        for stream in dataset.streams:
            stream._downloader.clean_up()
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=BATCH, num_workers=streams, collate_fn=list, drop_last=True
        )
        for batch in loader:
            yield len(batch)

    return run


def copied(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples that can be sent to another process: litData's bytes are memoryviews."""
    return [{**sample, "image": bytes(sample["image"])} for sample in samples]


def litdata(bucket: str, streams: int) -> Run:
    """Shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # Its client, which is obstore as ours, otherwise refuses http://.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    def run() -> Iterator[int]:
        dataset = StreamingDataset(
            f"s3://{bucket}",
            cache_dir=tempfile.mkdtemp(),
            shuffle=True,
            drop_last=True,
            max_cache_size="4GB",
            storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        )
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=streams, collate_fn=copied, drop_last=True
        )
        for batch in loader:
            yield len(batch)

    return run


CONTENDERS = {
    "bare": Contender("tfrecord", "http", bare),
    "ours, training order": Contender("tfrecord", "obstore", functools.partial(ours, order=large)),
    "ours, evaluation": Contender("tfrecord", "obstore", functools.partial(ours, order=evaluation)),
    "ranges, s3": Contender("tfrecord", "obstore", functools.partial(ranges_of, scheme="s3")),
    "ranges, gs": Contender("tfrecord", "obstore", functools.partial(ranges_of, scheme="gs")),
    "MosaicML streaming": Contender("mds", "streaming", mosaic),
    "litData": Contender("litdata", "litdata", litdata),
}


def main() -> None:
    """Runs one contender."""
    name, bucket, streams = sys.argv[1:]
    print(json.dumps(measured(CONTENDERS[name].prepare(bucket, int(streams)))), flush=True)
    os._exit(0)  # some peers wait long for their threads


if __name__ == "__main__":
    main()
