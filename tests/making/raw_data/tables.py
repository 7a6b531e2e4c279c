"""Tables."""

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from converters import table_to_gcs
from raw_data.images import make_image


class RawTables:
    """Tables of images by split, as csv, and one table of texts, as jsonl; some rows of each are bad."""

    def __init__(self, directory: Path, images=14):
        self.directory = directory
        self.images = {
            f"img/{i}.{'png' if i % 5 == 4 else 'jpg'}": self._image(i) for i in range(2 * images)
        }
        lines = [
            f"{name},{'cat' if i % 3 else 'dog'},{i / 4},n {i}"
            for i, name in enumerate(self.images)
        ]
        header = "file,animal,weight,note"
        self.tables = {
            "train-0.csv": [header, *lines[:4], "img/none.jpg,cat,1,", lines[0]],
            "train-1.csv": [header, *lines[4:images], "img/1.jpg,cat", '"img/2.jpg'],
            "val.csv": [header, *lines[images:]],
        }

    @staticmethod
    def _image(seed):
        return make_image(
            seed, *(("PNG", "RGBA") if seed % 5 == 4 else ("JPEG", "RGB")), (16, 10 + seed % 7)
        )

    def write(self):
        self.write_images()
        for name, lines in self.tables.items():
            (self.directory / name).write_text("\n".join(lines) + "\n")
        return self

    def write_images(self):
        for name, data in self.images.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
        return self

    def write_texts(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        rows = [
            {"text": f"Ein Käse {i} " * (i % 5 + 1), "about": ["x", "y", "z"][: i % 4]}
            for i in range(40)
        ]
        lines = [json.dumps(row) for row in rows] + [
            "{",
            json.dumps({"text": "no labels"}),
            "",
            "[]",
        ]
        (self.directory / "all.jsonl").write_text("\n".join(lines) + "\n")
        return self

    def write_columns(self):
        """Numbers, classes, texts and images as csv and, with lists, as jsonl; some rows are bad."""
        self.write_images()
        rows = [
            f"{i / 4},{i},{'ab'[i % 2]},Käse {i},{image}" for i, image in enumerate(self.images)
        ]
        bad = [
            "1,x,a,not a number,img/0.jpg",
            "1,2,a,too few",
            "1,1,b,no image,none.jpg",
            "1,1,,no label,img/0.jpg",
        ]
        lines = ["price,rooms,city,note,photo", ",3,b,no price,img/0.jpg", *rows, *bad]
        (self.directory / "rows.csv").write_text("\n".join(lines) + "\n")
        cells = [
            {"price": i, "rooms": i, "city": "ab"[i % 2], "note": "", "photo": "img/0.jpg"}
            for i in range(9)
        ]
        (self.directory / "rows.jsonl").write_text("\n".join(map(json.dumps, cells)) + "\n{\n")
        return self

    def write_parquet(self):
        """The same columns, without images, in row groups of 7; in some rows an integer or the class is missing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        rows = [
            {"price": i / 4, "rooms": i or None, "city": "ab"[i % 2], "note": f"Käse {i}"}
            for i in range(40)
        ]
        parquet.write_table(
            pa.Table.from_pylist([*rows, {"rooms": 1}]),
            self.directory / "rows.parquet",
            row_group_size=7,
        )
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        table_to_gcs.main([f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", *flags])
