"""Missing labels on two hosts, one of which has none in every other batch: as NumPy computes from the labelled rows."""

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosts(run_hosts):
    ended = run_hosts("missing_labels", 2, 1, host_timeout_seconds=60)
    assert [process.code for process in ended] == [0, 0], "\n".join(process.printed for process in ended)
    return [process.report for process in ended]


def shares(x, w):
    outputs = np.exp(x @ w)
    return outputs / outputs.sum(1, keepdims=True)


def labelled(data):
    """The features and the labels of the rows that have one."""
    x, label = np.array(data[0]), np.array(data[1])
    return x[label >= 0], label[label >= 0]


@pytest.mark.parametrize("accumulate", ["1", "2"])
def test_two_hosts_learn_and_measure_what_the_labelled_rows_say(hosts, accumulate):
    w = np.zeros((3, 4))
    for data in hosts[0]["trained on"]:
        x, label = labelled(data)
        w -= x.T @ (shares(x, w) - np.eye(4)[label]) / len(label)
    rows = [np.array(label) >= 0 for _, label in hosts[0]["trained on"]]
    assert [(each[:8].sum(), each[8:].sum()) for each in rows] == [(8, 8), (8, 0)] * 2  # of each host
    x, label = labelled(hosts[0]["evaluated on"])
    predicted = shares(x, w)
    for report in hosts:
        params, records, counted, proven, metrics = report[accumulate]
        np.testing.assert_allclose(params, w, rtol=1e-5, atol=1e-6)
        assert (records, counted, proven) == (36, 24, True)
        assert metrics["loss"] == pytest.approx(-np.log(predicted[np.arange(24), label]).mean(), rel=1e-5)
        assert metrics["accuracy"] == pytest.approx(np.mean(predicted.argmax(1) == label))


def test_both_hosts_name_a_label_outside_of_the_classes(hosts):
    what = "1 record with a label 'label' outside of 0..3"
    for report in hosts:
        assert f"EvaluationError: the evaluation counted {what}, such as record 20; the metrics" in report["evaluated"]
        assert f"InputError: step 2 has {what}. No checkpoint contains it" in report["trained"]


def test_two_hosts_map_other_numbers_alike_and_add_up_what_was_never_seen(hosts):
    for report in hosts:
        metrics, unseen, proven = report["same"]
        assert (unseen, proven) == (0, True)
        assert report["mapped"] == [metrics, 0, True]
        others, unseen, proven = report["unseen"]
        assert (unseen, proven, others == metrics) == (12, True, False)
        assert "'label' has the class 'e', which the model does not have" in report["refused"]
