import pytest

from pipeline.machine import free_memory_bytes

MEMINFO = "MemTotal:       24684096 kB\nMemFree:         8010304 kB\nMemAvailable:   1000000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def machine(tmp_path):
    """machine({path: text}): a root with these files beside /proc/meminfo, in which 1,024,000,000 bytes are free."""

    def write(files):
        for path, text in ({"proc/meminfo": MEMINFO} | files).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write


def v2(directory, limit):
    stat = "anon 100\ninactive_file 3000\nactive_file 7\n"
    names = {"memory.max": limit, "memory.current": "5000", "memory.stat": stat}
    return {f"sys/fs/cgroup{directory}/{name}": text for name, text in names.items()}


def v1(directory, limit):
    stat = "inactive_file 1\ntotal_inactive_file 3000\n"
    names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": "5000", "memory.stat": stat}
    return {f"sys/fs/cgroup/memory{directory}/{name}": text for name, text in names.items()}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 1_024_000_000),
        ({"proc/self/cgroup": "0::/a/b\n", **v2("", "max\n"), **v2("/a/b", "max\n")}, 1_024_000_000),
        ({"proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "900000\n")}, 898_000),
        ({"proc/self/cgroup": "0::/a/b\n", **v2("/a", "900000\n"), **v2("/a/b", "max\n")}, 898_000),
        ({"proc/self/cgroup": "4:memory:/x\n0::/\n", **v1("/x", "900000\n")}, 898_000),
        ({"proc/self/cgroup": "4:cpu,memory:/of/the/host\n3:cpu:/\n", **v1("", "900000\n")}, 898_000),
        ({"proc/self/cgroup": "4:memory:/x\n", **v1("/x", "9223372036854771712\n")}, 1_024_000_000),
        ({"proc/self/cgroup": "0::/a\n", **v2("/a", "1000\n")}, 0),
    ],
    ids=[
        "none",
        "no bound",
        "bound",
        "bound above",
        "version 1",
        "container",
        "version 1 no bound",
        "over the bound",
    ],
)  # fmt: skip
def test_free_memory_is_bounded_by_the_machine_and_every_parent_cgroup(machine, files, free):
    assert free_memory_bytes(machine(files)) == free
