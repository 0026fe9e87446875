"""A task that is not answered yet: its training up to some step, and its answer until the server has taken it.

A process that is started anew goes on from the last step that was saved, to the weights of a training without a stop;
or it sends the answer again. Only the very same task may use either: the same run, round, arrays, data and settings.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silofl.base.files import load_state, save_state
from silofl.parts.task import Message
from silofl.parts.tensors import to_arrays, to_tensors

FORMAT = 1
HALF, ANSWER = "half_round.pt", "answer.pt"
# Of a training's steps, that are done again at most; seconds between two files, and in multiples of the last one's own.
SHARE, LEAST_S, REST = 0.1, 5.0, 30
# What a task says of the network, on which no training depends: a server that was started anew may say it otherwise.
PASSING = {"software", "sites", "partners", "mixed", "rows"}

logger = logging.getLogger(__name__)


class HalfRound:
    """The files of one task; without a folder there are none.

    Args:
        folder: The site's folder of the run.
        describe: Returns what the task is; called where a file is read or written.

    Attributes:
        begun: What `save` saved of this very task before; empty where nothing was, or it is used up.
        has_trained: Whether the task trains, so that its answer is worth keeping.
    """

    def __init__(self, folder: Path | None = None, describe: Callable[[], Mapping[str, str | int]] = dict) -> None:
        self._folder = folder
        self._describe = describe
        self.has_trained = False
        self.begun = self._load(HALF)
        self._step = 0
        self._next = time.monotonic() + LEAST_S

    def answer(self) -> Message | None:
        """Return the task's answer where it was finished before; None where it was not."""
        if saved := self._load(ANSWER):
            return Message(to_arrays(saved["arrays"]), saved["meta"])
        return None

    def of(self, part: str) -> dict[str, Any]:
        """Return what a part had saved."""
        return {**self.begun.get("parts", {}).get(part, {})}

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether to save before the next step, of which so many are done."""
        if self._folder is None or time.monotonic() < self._next:
            return False
        # The first file comes as soon as its time has passed; later ones also wait for a share of the steps.
        return self._step == 0 or step - self._step >= max(1, int(SHARE * steps))

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save a training after a step; none fails because it cannot be saved."""
        began = time.monotonic()
        if self._folder is not None:
            self._write(self._folder, HALF, state)
        ended = time.monotonic()
        self._step = step
        # On a slow disk the files are rarer, so that saving takes a small share of the time.
        self._next = ended + max(LEAST_S, REST * (ended - began))

    def keep_answer(self, answer: Message) -> None:
        """Save the answer of a training, in the place of its steps."""
        if self.has_trained and self._folder is not None:
            self._write(self._folder, ANSWER, {"arrays": to_tensors(answer.arrays), "meta": _to_plain(answer.meta)})
            # The steps go only once the answer is on the disk.
            with suppress(OSError):
                (self._folder / HALF).unlink(missing_ok=True)

    @cached_property
    def _task(self) -> Mapping[str, str | int]:
        return self._describe()

    def _load(self, name: str) -> dict[str, Any]:
        """Return what a file holds of this task; one of another task is of no use to anybody, and goes."""
        if self._folder is None or not (path := self._folder / name).exists():
            return {}
        try:
            return load_state(path, FORMAT, self._task)
        except Exception as error:  # whatever it holds, the round can be trained anew
            logger.info("%s of another task is deleted: %s", name, error)
            # Of a folder in its place nothing can be kept, and the task is carried out all the same.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return {}

    def _write(self, folder: Path, name: str, state: dict[str, Any]) -> None:
        try:
            save_state(folder / name, FORMAT, self._task, state)
        except OSError as error:
            logger.warning("%s cannot be written, and a stop would lose the round so far: %s", name, error)


def digest_task(message: Message, *deciding: object) -> str:
    """Return the SHA-256 of a task's arrays and words, and of what else decides its answer."""
    meta = {key: value for key, value in message.meta.items() if key not in PASSING}
    digest = hashlib.sha256(json.dumps([_to_plain(meta), deciding], sort_keys=True).encode())
    for name, array in sorted(message.arrays.items()):
        # Shape and type too: the same bytes may be other arrays.
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def to_device(value: Any, device: torch.device) -> Any:  # noqa: ANN401
    """Return what a file held with its tensors on a device."""
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, list):
        return [to_device(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _to_plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value without NumPy's numbers, which no file that is read safely may hold."""
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_to_plain, value))
    return value.item() if isinstance(value, np.generic) else value
