from pipeline.datasets import train_dataset
from pipeline.hosts import Hosts


def test_more_hosts_than_streams_are_warned_with_the_option_to_set(numbers_of, caplog):
    caplog.set_level("INFO", "pipeline")
    directory = numbers_of(40, 40)
    options = {"global_batch": 8, "hosts": Hosts(3, 8), "keys": ()}
    train_dataset(directory, streams=8, block_records=4, **options)
    train_dataset(directory, streams=4, block_records=1, **options)  # hosts share no block of one record
    train_dataset(directory, streams=4, block_records=4, **options)
    (line,) = [line for line in caplog.messages if "streams" in line]
    assert line.startswith("8 hosts share 4 streams, so some read the same blocks. With streams=8 on all hosts")
