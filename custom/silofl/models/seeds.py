"""The seed of torch's own generators, from which first weights and dropout are drawn."""

import torch


def seed_torch(seed: int) -> None:
    """Seed the generators of the processor and, where torch knows them, of NVIDIA's GPUs.

    The numbers are those of `torch.manual_seed`, which writes down the call stack for each kind of device that is not
    there: 0.4 ms a call on a CPU, and several within many calls.
    """
    torch.default_generator.manual_seed(seed)
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # of torch
        torch.cuda.manual_seed_all(seed)
