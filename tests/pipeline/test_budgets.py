import pytest

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import OptionError
from pipeline.formats import TFRecords
from pipeline.hosts import Hosts


def test_more_hosts_than_unindexed_files_are_refused_with_the_index_command(numbers_of):
    files = open_dataset(numbers_of(40, 40) + "/train-*", format=TFRecords())
    train_dataset(files, global_batch=8, hosts=Hosts(1, 2), keys=())
    text = r"train-\*: 4 hosts cannot share 2 files that have no index, .* An index .*: python -m pipeline\.index"
    with pytest.raises(OptionError, match=text):
        train_dataset(files, global_batch=8, hosts=Hosts(1, 4), keys=())
