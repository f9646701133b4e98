"""This machine's GPUs through NVML. A call that hangs is given up after a while and the last good answer stands."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

from rota.core.node import Gpu, Node

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
GB = 1024**3


class NoGpus(Exception):
    """There is no NVIDIA driver here, or no GPU behind it."""


class NvmlProbe:
    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoGpus("the nvidia-ml-py package is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NoGpus(str(error)) from error
        if not count:
            raise NoGpus("the driver shows no GPU")
        self._last: Node | None = None
        self._asking: Thread | None = None
        self._trouble = self._said = ""

    def nodes(self) -> Sequence[Node]:
        if self._asking is None:
            self._asking = Thread(target=self._ask, name="rota-nvml", daemon=True)
            self._asking.start()
        self._asking.join(TIMEOUT_S)
        if self._asking.is_alive():
            trouble = "NVML does not answer"
        else:
            self._asking, trouble = None, self._trouble
        if trouble and trouble != self._said:
            log.warning("%s: no new work is given to this node's GPUs until that is over", trouble)
        self._said = trouble
        if self._last is None:
            raise NoGpus(trouble)
        if trouble:
            unfit = tuple(replace(gpu, healthy=False, why=trouble) for gpu in self._last.gpus)
            return (replace(self._last, gpus=unfit),)
        return (self._last,)

    def _ask(self) -> None:
        try:
            self._last, self._trouble = self._look(), ""
        except self._nvml.NVMLError as error:
            self._trouble = str(error)

    def _look(self) -> Node:
        nvml = self._nvml
        gpus = []
        known = {gpu.index: gpu for gpu in self._last.gpus} if self._last else {}
        for index in range(max(nvml.nvmlDeviceGetCount(), len(known))):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                gpus.append(
                    Gpu(
                        index=index,
                        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                        type=_text(nvml.nvmlDeviceGetName(handle)),
                        memory_gb=round(memory.total / GB, 1),
                        minor=nvml.nvmlDeviceGetMinorNumber(handle),
                    )
                )
            except nvml.NVMLError as error:
                was = known.get(index, Gpu(index, "", "unknown", 0.0))
                gpus.append(replace(was, healthy=False, why=str(error)))
        hostname = socket.gethostname()
        return Node(
            id=hostname,
            hostname=hostname,
            gpus=tuple(gpus),
            cpus=os.cpu_count() or 1,
            memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB, 1),
        )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
