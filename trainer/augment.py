"""Augmentation on the device: functions batch -> batch for a Task's `augment`, and normalization for its loss.

    def augment(batch):
        batch = color_jitter(batch, "image", brightness=0.4, contrast=0.4, saturation=0.4)
        return cutmix(one_hot(batch, "label", num_classes=1000, smoothing=0.1), "image")

The random numbers of a record depend only on its `_seed`, a hash of seed, epoch and record."""

from trainer.augmentation.color import color_jitter, normalize
from trainer.augmentation.mixing import cutmix, mixup, one_hot, random_erasing

__all__ = ["color_jitter", "cutmix", "mixup", "normalize", "one_hot", "random_erasing"]
