"""Clients that read their environment at first use, for a process of their own: `python client_programs.py NAME…`.

Prints one line of JSON, {name: what it found}. They know nothing of the server but the bucket."""

import json
import os
import sys

BUCKET = "gs://things"


def tensorflow():
    import tensorflow as tf

    gfile = tf.io.gfile
    with gfile.GFile(f"{BUCKET}/tf/text", "w") as file:
        file.write("hello")
    with tf.io.TFRecordWriter(f"{BUCKET}/tf/records") as writer:
        for number in range(1000):
            writer.write(b"%d" % number)
    records = list(tf.data.TFRecordDataset(f"{BUCKET}/tf/records").as_numpy_iterator())
    gfile.rename(f"{BUCKET}/tf", f"{BUCKET}/moved")  # a folder: the storage layout is asked for
    return {
        "text": gfile.GFile(f"{BUCKET}/moved/text").read(),
        "records": [len(records), records[-1].decode()],
        "glob": gfile.glob(f"{BUCKET}/moved/*"),
        "listdir": gfile.listdir(BUCKET + "/moved"),
        "exists": [gfile.exists(f"{BUCKET}/moved/text"), gfile.exists(f"{BUCKET}/tf/text")],
        "faulty": gfile.GFile(f"{BUCKET}/faulty").read(),
    }


def orbax():
    import jax.numpy as jnp
    from orbax import checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(f"{BUCKET}/checkpoints", options=options) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.arange(4.0) * step}))
        manager.wait_until_finished()
        restored = manager.restore(3, args=ocp.args.StandardRestore({"w": jnp.zeros(4)}))
        return {"steps": list(manager.all_steps()), "w": restored["w"].tolist()}


def tensorstore():
    import tensorstore as ts

    store = ts.KvStore.open(f"{BUCKET}/ts/").result()
    store.write("k", b"v").result()
    return {"value": store.read("k").result().value.decode(), "keys": [key.decode() for key in store.list().result()]}


def beam():
    from apache_beam.io.filesystems import FileSystems

    for name in ("a", "b"):
        with FileSystems.create(f"{BUCKET}/beam/{name}.txt") as file:
            file.write(name.encode())
    FileSystems.rename([f"{BUCKET}/beam/a.txt"], [f"{BUCKET}/beam/c.txt"])
    with FileSystems.open(f"{BUCKET}/beam/c.txt") as file:
        read = file.read().decode()
    (match,) = FileSystems.match([f"{BUCKET}/beam/*"])
    FileSystems.delete([f"{BUCKET}/beam/b.txt"])
    return {"read": read, "match": {found.path: found.size_in_bytes for found in match.metadata_list}}


def credentials():
    """What google-auth's defaults give: those of the metadata server."""
    import google.auth
    from google.auth.transport.requests import Request

    found, project = google.auth.default()
    found.refresh(Request())
    return {"kind": type(found).__module__, "token": found.token, "project": project}


def storage_as_in_production():
    """google-cloud-storage without its emulator's variable: https, and a token from the metadata server."""
    from google.cloud import storage

    del os.environ["STORAGE_EMULATOR_HOST"]
    with storage.Client() as client:
        client.bucket("things").blob("https").upload_from_string(b"x", if_generation_match=0)
        return client.bucket("things").blob("https").download_as_bytes().decode()


if __name__ == "__main__":
    listed = (tensorflow, orbax, tensorstore, beam, credentials, storage_as_in_production)
    programs = {program.__name__: program for program in listed}
    print(json.dumps({name: programs[name]() for name in sys.argv[1:]}))
