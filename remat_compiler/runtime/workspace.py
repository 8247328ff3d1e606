"""Bytes that an operator allocates inside beyond its results: measured once, then remembered.

A convolution packs its weights, a sort keeps indices, a pointwise operator on mixed types converts its
inputs. No formula gives these bytes, they depend on shapes, strides, library, thread count and processor; so
the operator runs once on real tensors of the same shapes while the allocator's events are recorded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.runtime.op_call import OpCall

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Version of the stored file; another one is a miss."""


@dataclass(slots=True)
class WorkspaceTable:
    """Workspace bytes by operator call, in memory and, with a directory, on disk.

    Attributes:
        directory: Where the table is kept between processes; None keeps it in memory only.
        known: Bytes by key of the call, for `environment()` only.
    """

    directory: Path | None = None
    known: dict[str, int] = field(default_factory=dict)
    _environment: tuple[str, ...] = ()

    def resolve(self, calls: Iterable[OpCall]) -> dict[str, int]:
        """Workspace bytes of each call by its key; calls that cannot be measured are left out.

        Measures what is not known yet; puts the random state back afterwards.
        """
        self._follow_environment()
        wanted = {call.key: call for call in calls}
        missing = [call for key, call in wanted.items() if key not in self.known and call.repeatable]
        if missing and torch_compat.profiler_is_running():
            log.warning("cannot measure the workspace of %d operators while a profiler runs", len(missing))
            missing = []
        fresh = {}
        for call in missing:
            measured = measure_workspace(call)
            if measured is not None:
                fresh[call.key] = measured
        if fresh:
            self.known.update(fresh)
            self._save()
        return {key: self.known[key] for key in wanted if key in self.known}

    def probe(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any = None) -> int:
        """Workspace bytes of one operator, from fake or meta arguments.

        Args:
            func: An operator overload, such as ``torch.ops.aten.convolution.default``.
            args: Its arguments; of tensors only shape, strides, dtype and device matter.
            kwargs: Its keyword arguments.
            result: Its result, if known: it helps to recognise operators that need no measurement.

        Returns:
            Bytes; 0 also for an operator that cannot be measured (logged).
        """
        call = OpCall.of(func, args, kwargs, result)
        return 0 if call is None else self.resolve([call]).get(call.key, 0)

    def _follow_environment(self) -> None:
        now = environment()
        if now != self._environment:
            self._environment = now
            self.known.clear()
            self.known.update(self._load())

    def _path(self) -> Path | None:
        if self.directory is None:
            return None
        digest = hashlib.sha256("\n".join(self._environment).encode()).hexdigest()[:16]
        return self.directory / f"workspace-{digest}.json"

    def _load(self) -> dict[str, int]:
        path = self._path()
        if path is None or not path.exists():
            return {}
        try:
            return _checked(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used (%s); its operators are measured again", path, error)
            return {}

    def _save(self) -> None:
        path = self._path()
        if path is None:
            return
        # Another process may have written meanwhile: keep what it found.
        table = self._load() | self.known
        record = {"version": FORMAT_VERSION, "environment": self._environment, "workspace_bytes": table}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(record, file, sort_keys=True, indent=1)
            os.replace(temporary, path)
        except OSError as error:
            log.warning("%s cannot be written (%s); the measurements hold for this process only", path, error)


def probe_workspace(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> int:
    """Workspace bytes of one operator, measured or remembered in this process; see `WorkspaceTable.probe`."""
    return _PROCESS_TABLE.probe(func, args, kwargs or {})


def measure_workspace(call: OpCall) -> int | None:
    """Run `call` on fresh real tensors: the peak of its allocations less what its results keep, in bytes.

    Returns:
        None when the operator cannot run so; the reason is logged.
    """
    devices = [torch.cuda.current_device()] if call.device_type == "cuda" else []
    try:
        with torch_compat.outside_tracing(), torch.random.fork_rng(devices), torch.no_grad():
            args, kwargs = call.real_arguments()
            run = _cuda_run if call.device_type == "cuda" else _cpu_run
            return run(lambda: call.func(*args, **kwargs))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        log.warning("the workspace of %s is unknown: %s", call.key, error)
        return None


def environment() -> tuple[str, ...]:
    """All beside the call that decides how much an operator allocates."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return (
        f"torch {torch.__version__}",
        f"device {device}",
        f"cpu {torch.backends.cpu.get_cpu_capability()}",
        f"threads {torch.get_num_threads()}",
        f"onednn {torch._C._get_mkldnn_enabled()}",
        f"matmul {torch.get_float32_matmul_precision()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"cudnn {torch.backends.cudnn.enabled} {torch.backends.cudnn.benchmark}",
    )


def _cpu_run(run: Callable[[], object]) -> int:
    deltas, _ = torch_compat.memory_deltas(run)
    live = peak = 0
    for delta in deltas:
        live += delta
        peak = max(peak, live)
    return max(0, peak - live)


def _cuda_run(run: Callable[[], object]) -> int:
    run()  # the first call keeps library workspaces that later ones find
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    held = torch.cuda.memory_allocated() - before
    del result
    return max(0, torch.cuda.max_memory_allocated() - before - held)


_PROCESS_TABLE = WorkspaceTable()


def _checked(record: object) -> dict[str, int]:
    if not isinstance(record, dict) or record.get("version") != FORMAT_VERSION:
        raise ValueError(f"not a workspace table of version {FORMAT_VERSION}")
    table = record.get("workspace_bytes")
    if not isinstance(table, dict) or not all(isinstance(n, int) and n >= 0 for n in table.values()):
        raise ValueError("workspace_bytes must map operator calls to byte counts")
    return {str(key): size for key, size in table.items()}
