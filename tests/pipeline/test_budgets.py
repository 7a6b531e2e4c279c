import pytest

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import OptionError
from pipeline.formats import TFRecords
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


def test_more_hosts_than_unindexed_files_are_refused_with_the_index_command(numbers_of):
    files = open_dataset(numbers_of(40, 40) + "/train-*", format=TFRecords())
    train_dataset(files, global_batch=8, hosts=Hosts(1, 2), keys=())
    text = r"train-\*: 4 hosts cannot share 2 files that have no index, .* An index .*: python -m pipeline\.index"
    with pytest.raises(OptionError, match=text):
        train_dataset(files, global_batch=8, hosts=Hosts(1, 4), keys=())
