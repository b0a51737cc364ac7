"""Get the objects of a bucket by a client of S3: CLIENT URL CERTIFICATE TIMES; no certificate: a
plain connection. Prints the bytes that it got.

The key and its secret are the variables S3_KEY and S3_SECRET."""

import os
import sys

KEYS = [f"object{number}" for number in range(4)]
KEY, SECRET = os.environ["S3_KEY"], os.environ["S3_SECRET"]
OWN = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
REGION = "us-east-1"


def _boto3(url: str, certificate: str, times: int) -> int:
    import boto3

    verify = certificate or None
    client = boto3.client("s3", endpoint_url=url, region_name=REGION, verify=verify, **OWN)
    return sum(
        len(client.get_object(Bucket="bucket", Key=key, **ranged)["Body"].read())
        for _ in range(times)
        for key, ranged in [*((key, {}) for key in KEYS), (KEYS[0], {"Range": "bytes=1000-4999"})]
    )


def _s3fs(url: str, certificate: str, times: int) -> int:
    import s3fs

    more = {"region_name": REGION, "verify": certificate or None}
    files = s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=url, client_kwargs=more)
    return sum(len(files.cat_file(f"bucket/{key}")) for _ in range(times) for key in KEYS)


def _pyarrow(url: str, certificate: str, times: int) -> int:
    from pyarrow.fs import S3FileSystem

    scheme, _, host = url.partition("://")
    more = {"tls_ca_file_path": certificate} if certificate else {}
    files = S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=host,
        scheme=scheme,
        region=REGION,
        **more,
    )
    got = 0
    for _ in range(times):
        for key in KEYS:
            with files.open_input_stream(f"bucket/{key}") as stream:
                got += len(stream.read())
        with files.open_input_file(f"bucket/{KEYS[0]}") as stream:
            got += len(stream.read_at(4000, 1000))
    return got


def _obstore(url: str, _certificate: str, times: int) -> int:
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        endpoint=url,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return sum(len(store.get(key).bytes()) for _ in range(times) for key in KEYS)


def _s3torchconnector(url: str, _certificate: str, times: int) -> int:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    os.environ.update({name.upper(): value for name, value in OWN.items()})
    objects = S3MapDataset.from_prefix(
        "s3://bucket/object",
        region=REGION,
        endpoint=url,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return sum(len(objects[place].read()) for _ in range(times) for place in range(len(objects)))


CLIENTS = {
    "boto3": _boto3,
    "s3fs": _s3fs,
    "pyarrow": _pyarrow,
    "obstore": _obstore,
    "s3torchconnector": _s3torchconnector,
}

if __name__ == "__main__":
    _, client, url, certificate, times = sys.argv
    print(CLIENTS[client](url, certificate, int(times)))
