"""Tables."""

import json
from pathlib import Path

from converters import table_to_gcs
from raw_data.images import make_image


class RawTables:
    """Tables of images by split, as csv, and one table of texts, as jsonl; some rows of each are bad."""

    def __init__(self, directory: Path, images=14):
        self.directory = directory
        self.images = {f"img/{i}.{'png' if i % 5 == 4 else 'jpg'}": self._image(i) for i in range(2 * images)}
        lines = [f"{name},{'cat' if i % 3 else 'dog'},{i / 4},n {i}" for i, name in enumerate(self.images)]
        header = "file,animal,weight,note"
        self.tables = {
            "train-0.csv": [header, *lines[:4], "img/none.jpg,cat,1,", lines[0]],
            "train-1.csv": [header, *lines[4:images], "img/1.jpg,cat", '"img/2.jpg'],
            "val.csv": [header, *lines[images:]],
        }

    @staticmethod
    def _image(seed):
        return make_image(seed, *(("PNG", "RGBA") if seed % 5 == 4 else ("JPEG", "RGB")), (16, 10 + seed % 7))

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
        rows = [{"text": f"Ein Käse {i} " * (i % 5 + 1), "about": ["x", "y", "z"][: i % 4]} for i in range(40)]
        lines = [json.dumps(row) for row in rows] + ["{", json.dumps({"text": "no labels"}), "", "[]"]
        (self.directory / "all.jsonl").write_text("\n".join(lines) + "\n")
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        table_to_gcs.main([f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", *flags])
