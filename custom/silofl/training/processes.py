"""Batches in training spread over several processes of a site; on GPUs each process has its own.

Another process gets the network's parameters with its share of a batch's images. It answers those, and later computes
their gradients. All else stays in the site's own process: the loss of the whole batch, the algorithm's step, the
optimiser. A step is that of one process but for the order of sums, whatever the loss and the algorithm. torch's
DistributedDataParallel averages losses of shares instead, and a Dice over the batch is no such average.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from silofl.base.errors import ConfigError, TrainingError, error_text
from silofl.models import build_plain_model
from silofl.models.networks import ANSWER_BATCH, find_influence
from silofl.setup.extensions import allow_extensions, list_allowed_extensions
from silofl.study import Study
from silofl.training.device import keep_freed_memory

INSIDE = "an algorithm that looks into the network's layers"


@contextmanager
def spread_batches(processes: int, study: Study, device: torch.device) -> Iterator[None]:
    """Let so many processes, with this one, answer the batches of the study's networks in training; then end them.

    Raises:
        ConfigError: There are fewer GPUs.
        TrainingError: The study's step needs the whole batch in one process; or a process has ended.
    """
    if processes == 1:
        yield
        return
    if study.is_private:
        _refuse(processes, "privacy.dp_sgd, which needs each image's own gradient")
    if any(traits.looks_inside for traits in study.recipe.traits):
        _refuse(processes, INSIDE)
    if device.type == "cuda" and processes > torch.cuda.device_count():
        raise ConfigError(
            f"processes of site.yaml must be at most the job's GPUs, {torch.cuda.device_count()}, not {processes}; "
            "lower it, or raise gpus_per_job in resources.json"
        )
    spread = _Spread(processes, study, device)
    token = ANSWER_BATCH.set(spread)
    try:
        yield
    finally:
        ANSWER_BATCH.reset(token)
        for worker in spread.workers:
            worker.close()


def _refuse(processes: int, what: str) -> NoReturn:
    raise TrainingError(
        f"processes of site.yaml must be 1 with {what}, not {processes}; set it to 1, or have the study changed"
    )


class _Spread:
    """What answers batches in a network's place: how many so far, and in which other processes."""

    def __init__(self, processes: int, study: Study, device: torch.device) -> None:
        self.processes = processes
        self._study = study
        self._device = device
        self.workers: list[_Worker] = []
        self.answered = 0

    def __call__(self, network: nn.Module, images: Tensor) -> Tensor:
        if obstacle := self._find_obstacle(network, images):
            _refuse(self.processes, obstacle)
        # The other processes begin at the first batch; the site's own one has GPU 0.
        for number in range(len(self.workers) + 1, self.processes):
            device = torch.device("cuda", number) if self._device.type == "cuda" else self._device
            self.workers.append(_Worker(f"process {number + 1} of {self.processes}", self._study, device))
        self.answered += 1
        answer: Tensor = _Answer.apply(self, network, images, *_list_learning(network))  # type: ignore[no-untyped-call]  # of torch
        return answer

    def _find_obstacle(self, network: nn.Module, images: Tensor) -> str:
        for module in network.modules():
            has_statistics = isinstance(module, _BatchNorm) or getattr(module, "track_running_stats", False)
            if has_statistics and module.training:
                return "BatchNorm in training, whose statistics are of the whole batch"
            if module._forward_hooks or module._forward_pre_hooks:
                return INSIDE
        # The first batch shows what a network is like; to try it costs six answers.
        influence = "" if self.answered else find_influence(network, images)
        return {
            "": "",
            "others": "a network that answers an image by the others of its batch",
            "draws": "a network that draws random numbers, as dropout does",
        }[influence]


class _Answer(torch.autograd.Function):
    """A network's answers to a batch as a function of its parameters."""

    @staticmethod
    def forward(ctx: Any, spread: _Spread, network: nn.Module, images: Tensor, *learning: Tensor) -> Tensor:  # noqa: ANN401
        local, *remote = images.chunk(spread.processes)
        ctx.spread = spread
        ctx.number = spread.answered
        ctx.workers = spread.workers[: len(remote)]
        ctx.learning = learning
        ctx.size = len(local)
        arrays = _list_arrays(network)
        task = {
            "arrays": [value.detach() for value in arrays],
            "learns": [value.requires_grad for value in arrays],
            "is_autocast": torch.is_autocast_enabled(images.device.type),
        }
        for worker, share in zip(ctx.workers, remote, strict=True):
            # A copy, because the memory of the whole batch would travel with its part.
            worker.send(task | {"images": share.clone()})
        # This process computes its share while the others compute theirs.
        with torch.enable_grad():
            ctx.answer = network(local)
        answers = [worker.receive()[0].to(images.device) for worker in ctx.workers]
        return torch.cat([ctx.answer.detach(), *answers])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        if ctx.number != ctx.spread.answered:
            # The other processes know their last answers alone.
            _refuse(ctx.spread.processes, "an algorithm that learns from a batch after it has looked at another")
        local, *remote = torch.split(gradient, ctx.size)
        for worker, share in zip(ctx.workers, remote, strict=True):
            worker.send({"gradient": share.clone()})
        sums = list(torch.autograd.grad(ctx.answer, ctx.learning, local, allow_unused=True))
        for worker in ctx.workers:
            for number, part in enumerate(worker.receive()):
                # What no answer depends on has no gradient in any process.
                if part is not None:
                    sums[number] = sums[number] + part.to(sums[number].device)
        return None, None, None, *sums


class _Worker:
    """Another process, as the site's own one sees it."""

    def __init__(self, name: str, study: Study, device: torch.device) -> None:
        context = get_context("spawn")
        self._name = name
        self._connection, theirs = context.Pipe()
        arguments = (theirs, study, list_allowed_extensions(), device, torch.get_num_threads())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        # Held here too, it would hide that the process has ended.
        theirs.close()

    def send(self, task: Mapping[str, Any]) -> None:
        # `receive` says that the process has ended.
        with suppress(OSError):
            _send(self._connection, task)

    def receive(self) -> list[Any]:
        try:
            answer: list[Any] | str = _receive(self._connection)
        except (EOFError, OSError):
            self._process.join()
            raise TrainingError(
                f"{self._name} ended with exit code {self._process.exitcode} before the round did; see whether the "
                "machine's memory was full, and set processes: 1 in site.yaml if it was"
            ) from None
        if isinstance(answer, str):
            raise TrainingError(f"{self._name} could not compute its share of a batch: {answer}; set processes: 1")
        return answer

    def close(self) -> None:
        self._connection.close()
        # It has nothing to write, and may be in the middle of a long computation.
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, study: Study, extensions: Sequence[str], device: torch.device, threads: int) -> None:
    """Answer one share of a batch after the other until the site's own process ends."""
    # Ctrl+C reaches every process; the site's own ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    allow_extensions(extensions)
    network = build_plain_model(study, study.seed).to(device).train().network
    answer: Any = None
    reply: list[Any] | str
    with suppress(EOFError, OSError):
        while True:
            task = _receive(connection, device)
            try:
                if "gradient" in task:
                    # The gradient is of the answer before, whose graph is kept until now.
                    learning = _list_learning(network)
                    reply = [*torch.autograd.grad(answer, learning, task["gradient"], allow_unused=True)]
                else:
                    answer = _compute_answer(network, **task)
                    reply = [answer.detach()]
            except Exception as error:  # whatever torch or a package's network raises
                reply = error_text(error)
            _send(connection, reply)


def _compute_answer(
    network: nn.Module, arrays: Sequence[Tensor], learns: Sequence[bool], is_autocast: bool, images: Tensor
) -> Tensor:
    for array, value, is_learning in zip(_list_arrays(network), arrays, learns, strict=True):
        array.data = value
        array.requires_grad_(is_learning)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=is_autocast):
        answer: Tensor = network(images)
    return answer


def _list_arrays(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _list_learning(network: nn.Module) -> list[Tensor]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def _send(connection: Connection, message: object) -> None:
    # Through the pipe: containers have little memory for processes to share.
    buffer = BytesIO()
    torch.save(message, buffer)
    connection.send_bytes(buffer.getbuffer())


def _receive(connection: Connection, device: torch.device | str = "cpu") -> Any:  # noqa: ANN401
    return torch.load(BytesIO(connection.recv_bytes()), map_location=device, weights_only=True)
