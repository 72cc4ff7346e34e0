"""A small data-parallel training loop, as a user of `Session` writes it; started by torchrun.

torchrun --nproc-per-node 4 training.py STEPS DIRECTORY      writes DIRECTORY/rank<n>.json
"""

from __future__ import annotations

import json
import os
import sys
import time

import cachehome


def main(steps: int, directory: str) -> None:
    began = time.perf_counter()
    with cachehome.Session() as session:
        restored = time.perf_counter() - began
        import torch
        import torch.distributed as dist
        from torch._dynamo.utils import counters

        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        @torch.compile
        def loss_of(batch):
            return (model(batch) - batch).pow(2).mean()

        times = []
        first_round = 0
        for step in range(steps):
            start = time.perf_counter()
            loss = loss_of(torch.randn(32, 64))
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start)
            if (step + 1) % 10 == 0 and session.round_completed():
                first_round = first_round or step + 1
        found = counters["inductor"]
        with open(os.path.join(directory, f"rank{dist.get_rank()}.json"), "w") as file:
            json.dump(
                {
                    "rank": dist.get_rank(),
                    "restored": restored,
                    "records": [record.to_json() for record in session.records],
                    "first_step": times[0],
                    "times": times,
                    "round": first_round,
                    "hits": found["fxgraph_cache_hit"],
                    "misses": found["fxgraph_cache_miss"],
                    "directory": os.environ["TORCHINDUCTOR_CACHE_DIR"],
                },
                file,
            )
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
