"""Documents."""

import gzip
import json
from pathlib import Path

from converters import text_to_gcs


class RawTexts:
    """Documents in text files of two directories, in a compressed table and in a csv; some of each are bad."""

    def __init__(self, directory: Path, documents=24):
        self.directory = directory
        self.texts = [f"Ein Käse {i}.\n\n" + f"Zeile {i} " * (i * 7 % 40) for i in range(documents)]
        third = documents // 3
        self.files = {
            f"{'a' if i % 2 else 'b/c'}/{i}.txt": text.encode()
            for i, text in enumerate(self.texts[:third])
        }
        self.files |= {"a/bad.txt": b"\xff\xfe", "a/empty.txt": b""}
        rows = [json.dumps({"text": text}) for text in self.texts[third : 2 * third]]
        rows += [
            "{",
            json.dumps({"text": 7}),
            json.dumps({"other": "x"}),
            json.dumps({"text": "\ud800"}),
        ]
        self.files["rows.jsonl.gz"] = gzip.compress("\n".join(rows).encode())
        quoted = ('"' + text.replace('"', '""') + '"' for text in self.texts[2 * third :])
        self.files["rows.csv"] = "\n".join(
            ["text,n", *(f"{text},1" for text in quoted), "x,1,2"]
        ).encode()

    def write(self):
        for name, data in self.files.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        return text_to_gcs.main([f"--raw-data-dir={self.directory}", f"--output={out}", *flags])
