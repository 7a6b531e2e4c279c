"""Copies of records within and across splits: counted as brute force counts them, and kept out of held-out splits."""

import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stages import without_beam

from beam_jobs.split.copies import Contents, Counted, counted
from converters import image_folder_to_gcs, table_to_gcs, text_to_gcs, tfrecord_to_gcs
from converters.raw.splits import HeldOut
from pipeline.commands import describe, verify
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.typed_json import CHECKSUM, sealed
from pipeline.sources.open_dataset import open_dataset


def photographs(directory, copies, seed=0):
    """40 images in two folders; a share `copies` of them are copies of others under new names."""
    rng = np.random.default_rng(seed)
    files = []
    for number in range(40):
        path = directory / "ab"[number % 2] / f"p{number % 5}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if files and rng.random() < copies:
            shutil.copy(files[rng.integers(len(files))], path)
        else:
            Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).save(path)
        files.append(path)
    return directory


def convert(raw, out, *flags, of=image_folder_to_gcs):
    with without_beam():
        assert of.main([f"--raw-data-dir={raw}", f"--output={out}", *flags]) == 0
    return out


def counts_of(out):
    """What the conversion counted: by splits, the records of each."""
    copies = json.loads((out / "_index/copies.json").read_text())["copies"]
    return {tuple(each["splits"]): each["records"] for each in copies}


def contents_of(out, raw):
    """By split, the raw bytes of each record of an image folder."""
    splits = json.loads((out / "manifest.json").read_text())["splits"]
    files = {(p.parents[1].name, p.name): p.read_bytes() for p in raw.rglob("*.png")}
    return {
        split: [
            files[each["image/class/text"].decode(), each["image/filename"].decode()]
            for each in open_dataset(out, split=split).examples()
        ]
        for split in splits
    }


def brute_force(contents):
    """The same by comparing all with all."""
    found = {}
    for pair in itertools.combinations_with_replacement(sorted(contents), 2):
        own = [Counter(contents[split]) for split in pair]
        if pair[0] == pair[1]:
            number = sum(n for n in own[0].values() if n > 1)
            found[pair[:1]] = {pair[0]: number} if number else {}
            continue
        both = own[0].keys() & own[1].keys()
        numbers = {s: sum(c[each] for each in both) for s, c in zip(pair, own, strict=True)}
        found[pair] = numbers if both else {}
    return found


@pytest.mark.parametrize("copies", [0.0, 0.1, 0.9])
def test_copies_are_counted_as_by_comparing_all_files(tmp_path, copies):
    raw = photographs(tmp_path / "raw", copies)
    out = convert(raw, tmp_path / "out", "--validation-fraction=0.3", "--test-fraction=0.2")
    assert counts_of(out) == brute_force(contents_of(out, raw))


def test_splits_converted_one_by_one_or_replaced_have_the_counts_of_all_at_once(tmp_path):
    raw = photographs(tmp_path / "raw", 0.5)
    flags = ["--validation-fraction=0.3"]
    both = convert(raw, tmp_path / "both", *flags)
    for split in ("validation", "train"):
        one = convert(raw, tmp_path / "one", *flags, f"--splits={split}")
    assert counts_of(one) == counts_of(both) == brute_force(contents_of(both, raw))
    flags[0] = "--validation-fraction=0.6"
    with pytest.raises(Exception, match="overwrite"):
        convert(raw, tmp_path / "one", *flags)
    convert(raw, tmp_path / "one", *flags, "--splits=validation", "--overwrite")
    assert counts_of(one) == brute_force(contents_of(one, raw))


def test_a_conversion_that_goes_on_counts_the_shards_that_it_keeps(tmp_path):
    raw = photographs(tmp_path / "raw", 0.5)
    flags = ["--validation-fraction=0.3", "--num-train-shards=3"]
    out = convert(raw, tmp_path / "out", *flags)
    counts = (out / "_index/copies.json").read_bytes()
    for lost in ("_index/copies.json", "manifest.json", "train-00001-of-00003", "_index/train.npy"):
        (out / lost).unlink()
    convert(raw, out, *flags)
    assert (out / "_index/copies.json").read_bytes() == counts


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--local-processes=2"], ["--runner=dask"]])
def test_runners_count_the_same(tmp_path, out, flags, run_forked):
    raw = photographs(tmp_path / "raw", 0.5)
    flags = [*flags, "--validation-fraction=0.3", "--num-train-shards=3"]
    command = ["-m", "converters.image_folder_to_gcs", f"--raw-data-dir={raw}"]
    code, printed = run_forked([*command, f"--output={out}", *flags], timeout=120)
    assert code == 0, printed
    assert counts_of(out) == brute_force(contents_of(out, raw))


def examples_of(out, *keys):
    """By split, the values of each record."""
    splits = json.loads((out / "manifest.json").read_text())["splits"]
    return {
        split: [
            tuple(np.array(each[key]).tobytes() for key in keys)
            for each in open_dataset(out, split=split).examples()
        ]
        for split in splits
    }


@pytest.mark.parametrize("different", [10**9, 150, 9])
def test_copies_of_rows_are_counted_as_by_comparing_their_cells(raw, tmp_path, different):
    rng = np.random.default_rng(different)
    rows = rng.integers(0, different, 200).tolist()
    lines = [f"{number},{row},{row / 7:.3f}" for number, row in enumerate(rows)]
    (raw / "all.csv").write_text("\n".join(["id,a,b", *lines]))
    flags = ["--validation-fraction=0.3", "--columns=id=skip,b=float32"]
    for by in ("--key-column=id", "--split-by=content"):
        out = convert(raw, tmp_path / by, *flags, by, of=table_to_gcs)
        found = counts_of(out)
        assert found == brute_force(examples_of(out, "a", "b"))
        assert bool(found["train", "validation"]) == (
            by != "--split-by=content" and different < 10**9
        )


@pytest.mark.parametrize("different", [10**9, 9])
def test_copies_of_rows_of_packed_text_are_counted(raw, tmp_path, different):
    rng = np.random.default_rng(different)
    for number in range(40):
        name = f"{'train' if number % 4 else 'validation'}-{number}.txt"
        (raw / name).write_text(f"{rng.integers(different):050}")
    flags = ["--tokenizer=bytes", "--sequence-length=64"]
    out = convert(raw, tmp_path / "out", *flags, of=text_to_gcs)
    assert counts_of(out) == brute_force(examples_of(out, "tokens"))


def test_what_was_counted_is_told_with_names_of_both(tmp_path, capsys):
    raw = tmp_path / "raw"
    for name in ("cat/1", "cat/1x", "dog/2", "dog/3", "dog/4", "dog/5"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (int(name[4]) * 40, 0, 0)).save(raw / f"{name}.png")
    held_out = HeldOut(0.5)
    assert held_out.split_of("cat/1.png") != held_out.split_of("cat/1x.png")
    out = convert(raw, tmp_path / "out", "--validation-fraction=0.5")
    numbers = {s: len(open_dataset(out, split=s).examples()) for s in ("train", "validation")}
    said = (
        f"1 of {numbers['train']} train records are also in validation, and 1 of {numbers['validation']} validation "
        "records in train, such as cat/1"
    )
    assert said in " ".join(capsys.readouterr().out.split())
    warnings = json.loads((out / "_summary/validation.json").read_text())["warnings"]
    assert any(said in each for each in warnings)
    for command in (describe, verify):
        command.main([str(out)])
        assert said in " ".join(capsys.readouterr().out.split())
    describe.main([str(out), f"--html={tmp_path / 'page.html'}"])
    assert said in (tmp_path / "page.html").read_text()
    keys = ["image/class/label"]
    assert eval_dataset(str(out), "validation", global_batch=2, keys=keys).info.copies == {
        "train": 1
    }
    assert open_dataset(out, split="validation").info.copies == {"train": 1}
    (out / "_index/copies.json").unlink()
    assert open_dataset(out, split="validation").info.copies is None
    capsys.readouterr()
    verify.main([str(out)])
    assert "Not known: whether records of train, validation are copies" in capsys.readouterr().out


@pytest.mark.parametrize(("older", "known"), [("train", [("validation",)]), ("", [])])
def test_shards_of_an_older_release_are_not_known_and_stay_as_they_are(tmp_path, older, known):
    raw = photographs(tmp_path / "raw", 0.5)
    out = convert(raw, tmp_path / "out", "--validation-fraction=0.3")
    for receipt in (out / "_shards").glob(f"{older}*-*.json"):
        fields = json.loads(receipt.read_text())
        del fields["content"], fields[CHECKSUM]
        receipt.write_text(json.dumps(sealed(fields)))
    (out / "_index/copies.json").unlink()
    convert(raw, out, "--validation-fraction=0.3")
    assert list(counts_of(out)) == known


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), min_size=1), st.randoms())
def test_groups_are_counted_as_by_comparing_all_with_all_in_any_order(records, random):
    by_shard = {}
    for split, digest in records:
        by_shard.setdefault((split, f"{split}{digest % 2}"), []).append(digest)
    pieces = [_contents(*key, digests) for key, digests in by_shard.items()]
    grouped = {}
    for piece in pieces:
        for group, part in piece.by_group(3 << 21):
            grouped.setdefault(group, []).append(part)
    total = Counted()
    for group in random.sample(sorted(grouped), len(grouped)):
        total.add(counted(random.sample(grouped[group], len(grouped[group]))))
    contents = {}
    for split, digest in records:
        contents.setdefault(split, []).append(digest)
    expected = brute_force(contents)
    for splits, numbers in expected.items():
        pair = splits[0], splits[-1]
        assert {s: total.copies[pair, s] for s in splits if total.copies[pair, s]} == numbers
        assert bool(total.examples.get(pair)) == bool(numbers)
        for _, one, other in total.examples.get(pair, ()):
            assert one != other
            assert (one.file[0], other.file[0]) == pair


def _contents(split, file, digests):
    rows = np.arange(len(digests), dtype=np.uint32)
    return Contents(split, file, f"{file}.json", np.array(digests, np.uint64), rows)


GROUPS = st.dictionaries(st.text(min_size=1), st.sampled_from("abc"), min_size=1, max_size=60)
SHARES = st.tuples(st.floats(0, 0.5), st.floats(0, 0.49))


@given(GROUPS, SHARES)
def test_each_class_has_its_share_of_groups_within_one(groups, shares):
    held_out = HeldOut(*shares).stratified((stratum, group) for group, stratum in groups.items())
    splits = {group: held_out.split_of(group, stratum) for group, stratum in groups.items()}
    for stratum in set(groups.values()):
        own = Counter(splits[group] for group, each in groups.items() if each == stratum)
        for split, share in zip(("validation", "test"), shares, strict=True):
            assert abs(own[split] - share * own.total()) <= 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("0123456789"))), SHARES, st.randoms()
)
def test_a_group_of_several_classes_is_in_one_split_in_any_order(records, shares, random):
    records += [("a", "0")]
    held_out = HeldOut(*shares).stratified(records)
    assert held_out == HeldOut(*shares).stratified(random.sample(records, len(records)))
    for _, of_group in itertools.groupby(
        sorted(records, key=lambda each: each[1]), lambda each: each[1]
    ):
        assert len({held_out.split_of(group, stratum) for stratum, group in of_group}) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_class_without_records_in_a_split_is_told_with_the_way_out(tmp_path, out, capsys, packed):
    raw = tmp_path / "raw"
    files = [f"cat/{number}" for number in range(40)] + ["dog/0"]
    for number, name in enumerate(files):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(raw / f"{name}.png")
    if packed:
        shutil.make_archive(str(tmp_path / "zipped"), "zip", raw)
        raw = tmp_path / "zipped.zip"
    convert(raw, out, "--validation-fraction=0.3")
    said = " ".join(capsys.readouterr().out.split())
    split = "train" if HeldOut(0.3).split_of("dog/0.png") == "validation" else "validation"
    assert f"split '{split}' has no records in one of its classes: 'dog'. --stratify holds" in said


def split_by_name(out):
    return {
        (each["image/class/text"], each["image/filename"]): split
        for split in ("train", "validation")
        for each in open_dataset(out, split=split).examples()
    }


def test_copies_of_a_photograph_are_in_one_split_by_content_and_stay_there(tmp_path):
    raw = photographs(tmp_path / "raw", 0.5)
    flags = ["--validation-fraction=0.3", "--split-by=content"]
    out = convert(raw, tmp_path / "out", *flags)
    contents = contents_of(out, raw)
    assert all(contents.values())
    assert {*contents["train"]}.isdisjoint(contents["validation"])
    before = split_by_name(out)
    shutil.make_archive(str(tmp_path / "zipped"), "zip", raw)
    (tmp_path / "zip").mkdir()
    shutil.move(tmp_path / "zipped.zip", tmp_path / "zip/all.zip")
    assert split_by_name(convert(tmp_path / "zip", tmp_path / "of zip", *flags)) == before
    photographs(tmp_path / "more", 0.0, seed=7)
    for path in (tmp_path / "more").rglob("*.png"):
        shutil.copy(path, raw / path.parent.parent.name / path.parent.name / f"new {path.name}")
    after = split_by_name(convert(raw, tmp_path / "more out", *flags))
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("by", "group"), [("folder", lambda c, p: (c, p)), (r"/(p\d)/", lambda c, p: p)]
)
def test_folders_or_what_a_pattern_finds_stay_together(tmp_path, by, group):
    raw = photographs(tmp_path / "raw", 0.0)
    out = convert(raw, tmp_path / "out", "--validation-fraction=0.4", f"--split-by={by}")
    folders = {(p.parents[1].name, p.name): p.parent.name for p in raw.rglob("*.png")}
    splits = {}
    for (folder, name), split in split_by_name(out).items():
        key = folder.decode(), name.decode()
        splits.setdefault(group(key[0], folders[key]), set()).add(split)
    assert all(len(each) == 1 for each in splits.values())
    assert len(splits) == (10 if by == "folder" else 5)


def test_a_column_decides_and_classes_have_their_shares(raw, tmp_path, capsys):
    rows = [f"{n % 37},{'rare' if n % 37 < 12 else 'often'},{n}" for n in range(370)]
    (raw / "all.csv").write_text("\n".join(["patient,kind,value", *rows]))
    flags = ["--validation-fraction=0.25", "--split-by=patient", "--label-column=kind"]
    out = convert(raw, tmp_path / "out", *flags, "--stratify", of=table_to_gcs)
    patients = {}
    for split in ("train", "validation"):
        for each in open_dataset(out, split=split).examples():
            patients.setdefault(each["patient"], set()).add(split)
    assert all(len(each) == 1 for each in patients.values())
    held = [number for number, splits in patients.items() if splits == {"validation"}]
    assert sum(number < 12 for number in held) == 3
    assert abs(sum(number >= 12 for number in held) - 25 / 4) <= 1
    capsys.readouterr()
    few = ["--validation-fraction=0.4", "--split-by=kind", "--label-column=kind"]
    convert(raw, tmp_path / "few", *few, of=table_to_gcs)
    said = " ".join(capsys.readouterr().out.split())
    assert "split 'validation' has no records in one of its classes: " in said
    assert "--stratify holds out the same fraction of each class." in said


@pytest.mark.parametrize("flags", [(), ("--key-column=value",), ("--split-by=name",)])
def test_each_class_of_a_table_has_its_share(raw, tmp_path, flags):
    rows = [f"{'rare' if n % 25 == 0 else 'often'},{n}" for n in range(1000)]
    (raw / "all.csv").write_text("\n".join(["kind,value", *rows]))
    flags = ["--validation-fraction=0.1", "--stratify", "--label-column=kind", *flags]
    out = convert(raw, tmp_path / "out", *flags, of=table_to_gcs)
    counts = Counter(each["kind"] for each in open_dataset(out, split="validation").examples())
    assert sorted(counts.values()) == [4, 96]


def test_a_pattern_that_finds_nothing_in_a_name_names_it(tmp_path, out):
    raw = photographs(tmp_path / "raw", 0.0)
    with pytest.raises(
        ConversionError, match=r"--split-by=\(q\\d\) finds nothing in '[ab]/p\d/\d+.png'"
    ):
        convert(raw, out, "--validation-fraction=0.4", r"--split-by=(q\d)")


def test_names_from_data_and_a_file_of_others_are_printed_without_their_controls_or_refused(
    tmp_path, capsys
):
    out = convert(photographs(tmp_path / "raw", 0.9), tmp_path / "out", "--validation-fraction=0.3")
    file = out / "_index/copies.json"
    fields = json.loads(file.read_text())
    del fields[CHECKSUM]
    for each in fields["copies"]:
        each["examples"] = [["\x1b[31m", "b"]]
    file.write_text(json.dumps(sealed(fields)))
    capsys.readouterr()
    assert verify.main([str(out)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b[31m and b" in printed
    fields = json.loads(file.read_text())
    del fields[CHECKSUM]
    for each in fields["copies"]:
        each["records"] = {"other": 1}
    file.write_text(json.dumps(sealed(fields)))
    assert verify.main([str(out)]) == 0  # not known
    file.write_text("{")
    assert verify.main([str(out)]) == 1
    assert "copies.json" in capsys.readouterr().out


def test_a_number_where_other_records_have_the_name_of_a_file_is_no_name(raw, tmp_path):
    record = frame(encode_example(Schema("", {"file_name": Feature("int64")}), {"file_name": 7}))
    (raw / "train.tfrecord").write_bytes(record * 2)
    out = convert(raw, tmp_path / "out", of=tfrecord_to_gcs)
    (copies,) = json.loads((out / "_index/copies.json").read_text())["copies"]
    assert (copies["records"], copies["examples"]) == ({"train": 2}, [])


def test_examples_of_copies_name_the_files_of_one_content(tmp_path):
    raw = photographs(tmp_path / "raw", 0.5)
    out = convert(raw, tmp_path / "out", "--validation-fraction=0", "--num-train-shards=1")
    contents = {f"{p.parents[1].name}/{p.name}": p.read_bytes() for p in raw.rglob("*.png")}
    (copies,) = json.loads((out / "_index/copies.json").read_text())["copies"]
    assert len(copies["examples"]) > 1
    for one, other in copies["examples"]:
        assert one != other
        assert contents[one] == contents[other]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"image/filename": b"a.jpg", "image/class/synset": b"n01"}, "n01/a.jpg"),
        (
            {
                "image/filename": b"a",
                "image/class/text": b"tench, Tinca tinca",
                "image/class/synset": b"n01",
            },
            "n01/a",
        ),
        ({"file_name": b"x" * 300}, "x" * 200),
        ({"image/class/text": b"cat"}, None),
    ],
    ids=["folder", "of ImageNet", "long", "none"],
)
def test_the_name_of_a_record_of_others_is_short_and_has_its_folder(raw, tmp_path, values, name):
    schema = Schema("", {key: Feature("bytes") for key in values})
    (raw / "train.tfrecord").write_bytes(frame(encode_example(schema, values)) * 2)
    out = convert(raw, tmp_path / "out", of=tfrecord_to_gcs)
    (copies,) = json.loads((out / "_index/copies.json").read_text())["copies"]
    assert copies["examples"] == ([[name, name]] if name else [])
