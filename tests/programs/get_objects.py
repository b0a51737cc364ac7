"""Get objects of a store: CLIENT URL COUNT [RANGED]. Prints the bytes that it got.

Each request has a secret in its query and one in a header, those of the variables SECRET_QUERY and
SECRET_HEADER."""

import asyncio
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

SECRETS = {"X-Amz-Signature": os.environ.get("SECRET_QUERY", "none")}
HEADERS = {"Authorization": f"Bearer {os.environ.get('SECRET_HEADER', 'none')}"}


def _paths(url: str, count: int) -> list[str]:
    return [f"{url}/bucket/key{number % 100}" for number in range(count)]


def _signed(path: str) -> str:
    return f"{path}?X-Amz-Signature={SECRETS['X-Amz-Signature']}&versionId=1"


def _urllib(url: str, count: int) -> int:
    """A connection for each."""
    context, got = ssl._create_unverified_context() if url.startswith("https") else None, 0
    for number, path in enumerate(_paths(url, count)):
        ranged = {"Range": f"bytes={number % 7}-"} if len(sys.argv) > 4 else {}
        request = urllib.request.Request(_signed(path), headers=HEADERS | ranged)
        for _ in range(3):
            try:
                with urllib.request.urlopen(request, timeout=30, context=context) as response:
                    got += len(response.read())
                break
            except urllib.error.HTTPError:
                continue
    return got


def _urllib3(url: str, count: int) -> int:
    import urllib3

    urllib3.disable_warnings()
    retry = urllib3.Retry(5, status_forcelist=[503], backoff_factor=0)
    pool, got = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=retry), 0
    for path in _paths(url, count):
        response = pool.request("GET", _signed(path), headers=HEADERS, preload_content=False)
        while data := response.read(1 << 16):
            got += len(data)
        response.release_conn()
    return got


def _aiohttp(url: str, count: int) -> int:
    import aiohttp

    async def get_all() -> int:
        connector = aiohttp.TCPConnector(limit=4, ssl=False)
        limit = asyncio.Semaphore(4)
        async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:

            async def get(path: str) -> int:
                async with limit, session.get(_signed(path)) as response:
                    return len(await response.read())

            return sum(await asyncio.gather(*map(get, _paths(url, count))))

    return asyncio.run(get_all())


def _boto3(url: str, count: int) -> int:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=url,
        verify=False,
        region_name="us-east-1",
        aws_access_key_id=os.environ.get("SECRET_QUERY", "none"),
        aws_secret_access_key=os.environ.get("SECRET_HEADER", "none"),
        aws_session_token=os.environ.get("SECRET_HEADER", "none"),
        config=Config(s3={"addressing_style": "path"}),
    )
    return sum(
        len(client.get_object(Bucket="bucket", Key=f"key{number % 100}")["Body"].read())
        for number in range(count)
    )


def _fsspec(url: str, count: int) -> int:
    import fsspec

    files: Any = fsspec.filesystem("https", headers=HEADERS, ssl=False)
    return sum(len(files.cat_file(_signed(path), ssl=False)) for path in _paths(url, count))


CLIENTS: dict[str, Callable[[str, int], int]] = {
    "urllib": _urllib,
    "urllib3": _urllib3,
    "aiohttp": _aiohttp,
    "boto3": _boto3,
    "fsspec": _fsspec,
}

if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    print(CLIENTS[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
