"""An S3-compatible server (moto) with the files of a folder in the bucket `data`.

usage: s3_server.py FOLDER     prints `ready PORT`; for a line `put NAME FILE` of standard input it replaces an object and prints
                               `done`; ends with standard input

Any credentials are accepted, and none are required. The server listens on the loopback interface.
"""

import logging
import os
import sys

import boto3
from moto.server import ThreadedMotoServer

# Objects are also read without credentials, by their HTTP address.
PUBLIC = {"ACL": "public-read"}


def main(folder):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What the server prints is no answer.
    os.dup2(2, 1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="test",
                          aws_secret_access_key="test", region_name="us-east-1")
    client.create_bucket(Bucket="data")
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            client.upload_file(path, "data", os.path.relpath(path, folder), ExtraArgs=PUBLIC)
    print(f"ready {port}", file=answers)
    for line in sys.stdin:
        _, name, path = line.rstrip("\n").split(" ", 2)
        client.upload_file(path, "data", name, ExtraArgs=PUBLIC)
        print("done", file=answers)
    server.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
