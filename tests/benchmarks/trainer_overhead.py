"""What the loop costs the host at each dispatch, and training fed by the input pipeline: two parts of bench_trainer."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from trainer_contenders import MemoryInput, through_trainer
from trainer_turns import Loop, Marks
from trainer_work import CLASSES, Work

from trainer.inputs import InputContext
from trainer.loop.dispatching import run
from trainer.loop.feed import Chunk
from trainer.loop.program import Program
from trainer.mesh import Placement

__all__ = ["dispatches", "pipeline_loops", "write_images"]

LABEL, IMAGE = "label", "image"


def dispatches(leaves: int, count: int) -> dict[str, Callable[[], float]]:
    """CPU microseconds of the process a dispatch, of a step that adds 1 to each of so many leaves: ours, a bare call.

    Batches are placed; both read the scalar of the dispatch before."""
    placement = Placement.of()
    carry = jax.device_put({f"leaf{i}": jnp.zeros(8) for i in range(leaves)}, placement.replicated)
    batch = {"x": np.ones((8,), np.float32)}

    def step(carry: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        return jax.tree.map(lambda leaf: leaf + 1, carry), {"loss": batch["x"].sum()}

    struct = {"x": jax.ShapeDtypeStruct((8,), np.float32)}
    program = Program(step, carry, struct, placement, global_batch=8, k=1, mode="step")
    program.compile({1})
    placed = program.place(batch, False)
    jitted = jax.jit(step, donate_argnums=0)
    state = {"ours": carry, "bare": jax.tree.map(jnp.copy, carry)}

    def our_loop() -> None:
        chunks = (Chunk(i, 1, (placed,), False) for i in range(count))
        state["ours"], _ = run(state["ours"], 0, chunks, program, lambda look: None)

    def bare_loop() -> None:
        before = None
        for _ in range(count):
            state["bare"], out = jitted(state["bare"], placed)
            if before is not None:
                float(before["loss"])
            before = out

    def measured(loop: Callable[[], None]) -> Callable[[], float]:
        def once() -> float:
            used = time.process_time()
            loop()
            return (time.process_time() - used) / count * 1e6

        return once

    return {"ours": measured(our_loop), "bare": measured(bare_loop)}


def write_images(directory: Path, work: Work, records: int) -> None:
    """JPEGs of noise with labels, one shard."""
    from pipeline.shards.example import encode_example
    from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
    from pipeline.shards.naming import index_file, shard_file
    from pipeline.shards.record import crc32c, frame
    from pipeline.shards.schema import Feature, Schema
    from pipeline.shards.split_index import encode_index
    from pipeline.storage.schemes import open_storage

    random = np.random.default_rng(0)
    schema = Schema("noise", {"image/encoded": Feature("bytes"), LABEL: Feature("int64")})
    payloads = []
    for _ in range(records):
        jpeg = io.BytesIO()
        Image.fromarray(random.integers(0, 256, work.shape, np.uint8)).save(jpeg, "JPEG")
        payloads.append(
            encode_example(schema, {"image/encoded": jpeg.getvalue(), LABEL: int(random.integers(CLASSES))})
        )
    data, name = b"".join(map(frame, payloads)), shard_file("train", 0, 1)
    index = encode_index(np.array([(len(payload), crc32c(payload)) for payload in payloads], np.uint32))
    (directory / index_file("train")).parent.mkdir(parents=True)
    (directory / index_file("train")).write_bytes(index)
    (directory / name).write_bytes(data)
    entries = (ShardEntry(name, records, len(data), crc32c(data)),)
    split = SplitEntry(entries, crc32c(index), "0" * 32, "0" * 32, seed=0)
    update_manifest(open_storage(str(directory)), str(directory), lambda _: Manifest("noise", schema, {"train": split}))


def pipeline_loops(work: Work, data: Path, directory: Path, steps: int) -> Iterator[tuple[str, Loop]]:
    """The input alone, Trainer.train from memory, and Trainer.train from the input."""
    from pipeline.datasets import train_dataset
    from pipeline.ops import DecodeJpeg

    def source(global_batch: int) -> Any:
        height, width, channels = work.shape
        ops = [DecodeJpeg("image/encoded", into=IMAGE, shape=(height, width, channels))]
        return train_dataset(str(data), "train", global_batch=global_batch, ops=ops, keys=(IMAGE, LABEL))

    def alone(mark: Marks) -> None:
        for step, _ in enumerate(source(work.batch).batches(), 1):
            if step % work.k == 0:
                mark(step)

    def from_memory(mark: Marks) -> None:
        through_trainer(work, mark, directory / "memory", steps, lambda context: MemoryInput(work))

    def from_input(mark: Marks) -> None:
        def input_fn(context: InputContext) -> Any:
            return source(context.global_batch_size)

        through_trainer(work, mark, directory / "input", steps, input_fn)

    for name, train in (("input alone", alone), ("training alone", from_memory), ("both", from_input)):
        yield name, Loop(train)
