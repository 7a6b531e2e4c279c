"""Image folders."""

from pathlib import Path

from converters import image_folder_to_gcs
from raw_data.archives import tar_of, zip_of
from raw_data.images import make_image


class RawImageFolder:
    """Folders of images, one a class, of all kinds, with a file in each that is none, and a hidden one."""

    def __init__(self, directory: Path, classes=("cat", "dog", "grey eel"), images=8):
        self.directory = directory
        self.files = {
            name: self._folder(100 * number, images) for number, name in enumerate(classes)
        }

    @staticmethod
    def _folder(seed, images):
        kinds = [
            ("JPEG", "RGB"),
            ("PNG", "RGBA"),
            ("WEBP", "RGB"),
            ("JPEG", "L"),
            ("PNG", "L"),
            ("JPEG", "RGB"),
        ]
        files = {".DS_Store": b"hidden", "notes.txt": b"not an image"}
        for i in range(images):
            form, mode = kinds[i % len(kinds)]
            files[f"{seed + i}.{form.lower()}"] = make_image(seed + i, form, mode, (16, 10 + i))
        return files

    def write(self, split=""):
        """As <split>/<class>/*, or <class>/* without one."""
        for name, files in self.files.items():
            folder = self.directory / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                (folder / file).write_bytes(data)
        return self

    def write_archives(self):
        """As train.zip and val.tar."""
        files = {
            f"{name}/{file}": data
            for name, files in self.files.items()
            for file, data in files.items()
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "train.zip").write_bytes(zip_of(files))
        (self.directory / "val.tar").write_bytes(tar_of(files))
        return self

    def convert(self, out, *flags):
        """Runs the real command line in this process."""
        image_folder_to_gcs.main(
            [f"--raw-data-dir={self.directory}", f"--gcs-output-path={out}", *flags]
        )
