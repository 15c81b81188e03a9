"""A local server of the S3 API, for the duration of a block."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "corpus"


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the URL of an empty bucket; skips where moto or s3fs is not installed."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs")
    moto = pytest.importorskip(
        "moto.server", reason="moto is not installed: pip install 'moto[server]'"
    )
    import boto3
    from s3fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "anybody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        S3FileSystem.clear_instance_cache()
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield f"s3://{BUCKET}"
        S3FileSystem.clear_instance_cache()
    server.stop()
