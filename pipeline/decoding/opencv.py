"""OpenCV as this project uses it: one thread. Every other module imports `cv2` from here."""

from pipeline.errors import how_to_install

try:
    import cv2
except ModuleNotFoundError as e:
    if e.name != "cv2":
        raise
    raise ModuleNotFoundError(
        f"Ops need OpenCV, which is not installed. Install it: {how_to_install('read')}.", name="cv2"
    ) from e

cv2.setNumThreads(1)  # batches are decoded in threads of their own
