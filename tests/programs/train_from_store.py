"""Train on objects of an HTTP server, a request for each sample: URL SAMPLES WORKERS PASSES. So
often the client goes over what it has received, in Python."""

import http.client
import sys
import time
from urllib.parse import urlsplit

import torch
from descent import Descent
from torch.utils.data import DataLoader, Dataset


class Objects(Dataset[torch.Tensor]):
    """Objects by their number, over one connection per worker."""

    def __init__(self, url: str, count: int, passes: int) -> None:
        self.url, self.count, self.passes = urlsplit(url), count, passes
        self.connection: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port)
        self.connection.request("GET", f"/bucket/sample-{number:06d}")
        response, data = self.connection.getresponse(), bytearray()
        while piece := response.read(16384):
            for _ in range(self.passes):
                piece = bytes(255 - byte for byte in piece)
            data += piece
        return torch.frombuffer(data, dtype=torch.uint8)[:1000].float()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, 2)
    optimizer = Descent(model.parameters(), lr=0.001)
    url, count, workers, passes = sys.argv[1], *map(int, sys.argv[2:5])
    start = time.monotonic()
    for batch in DataLoader(Objects(url, count, passes), 4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    print(time.monotonic() - start)
