"""A device of torch for tests on machines without a GPU: its tensors lie in host memory, and every operation is checked.

`CHECKED` is a device of another type than `cpu`, as `cuda` is. Operations really run, so steps that depend on
data work, and results can be compared with those of a CPU. As on a GPU, an operation whose tensors lie on
different devices fails, except for those that copy, and except for scalars in operations by element. Each
operation that would make a CPU wait for a GPU is counted.

torch's own fake tensors have no data, so they cannot run steps that depend on data, and their backward pass
needs a GPU. Autocast does not know the device, so trainings in 16 bits cannot run on it. Random numbers come from generators on the CPU, so they are those of a training on a CPU.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_TYPE = "checked"
_DEVICES = 8
_aten = torch.ops.aten

# Operations whose tensors may lie on different devices.
_COPIES = {_aten.copy_.default, _aten._to_copy.default}
# Besides operations by element, these take a scalar on the CPU.
_WITH_SCALARS = {
    _aten.fill_.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
}
# The size of the result depends on data, or data are returned to the CPU.
_WAITS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
}


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """Says that the device is no accelerator, so that torch does not use it by itself."""

    def is_available(self) -> bool:
        return False

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Module:
    """What torch asks of the module of a device, such as torch.cuda."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return _DEVICES

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing: random numbers come from the CPU's generators."""


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


_GENERATOR = torch.Generator


class _HostGenerator:
    """Stands for torch.Generator: returns a generator of the CPU for any device."""

    def __new__(cls, device: object = None) -> Any:
        return _GENERATOR()


class _WithoutGradients:
    """Stands for torch's inference mode, which does not support tensors such as ours."""

    def __init__(self, mode: bool) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self._before and not self._mode)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


_from_values = torch.tensor


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """Stands for torch.tensor, which torch does not show to modes. A GPU is filled by a copy, too."""
    made = _from_values(data, **options)
    return made if device is None else made.to(device)


class CheckedTensor(Tensor):
    """A tensor on the device. Only this module may use `host`, which has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, device: torch.device) -> CheckedTensor:
        made: CheckedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=device,
        )
        made.host = host
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.device)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"CheckedTensor({self.host}, device={self.device})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _run(func, tuple(args), dict(kwargs or {}))


class Checks(TorchDispatchMode):
    """A context in which tensors can be created on the device.

    Attributes:
        waits: how often each operation ran that would make a CPU wait for a GPU.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tuple(args), dict(kwargs or {})
        if _waits(func, args, kwargs):
            self.waits[str(func)] += 1
        if func.namespace == "nightrank":
            with self:  # our operators are made of torch's, which are checked too
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        return _run(func, args, kwargs)


def _tensors(*values: Any) -> list[Tensor]:
    """Returns the tensors among arguments of an operation. torch's own function takes several times as long."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, tuple | list):
            tensors += _tensors(*value)
        elif isinstance(value, dict):
            tensors += _tensors(*value.values())
    return tensors


@functools.cache
def _aliases(func: Any) -> bool:
    """Whether results of an operation may share memory with its arguments."""
    schema = func._schema
    return any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))


def _device_of(func: Any, tensors: Sequence[Tensor]) -> torch.device | None:
    """Returns the device that an operation runs on, None for the CPU.

    Raises:
        RuntimeError: the tensors lie on different devices.
    """
    there = {tensor.device for tensor in tensors if isinstance(tensor, CheckedTensor)}
    here = [tensor for tensor in tensors if not isinstance(tensor, CheckedTensor)]
    if not there:
        return None
    scalars = torch.Tag.pointwise in func.tags or func in _WITH_SCALARS
    wrong = [tensor for tensor in here if tensor.dim() or not scalars]
    if len(there) > 1 or wrong:
        devices = sorted(map(str, {*there, *(tensor.device for tensor in wrong)}))
        shapes = [(tuple(tensor.shape), str(tensor.device)) for tensor in tensors]
        raise RuntimeError(f"{func}: tensors on different devices {devices}: {shapes}")
    return next(iter(there))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = _tensors(args, kwargs)
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted)
    if func in _COPIES:
        return _copy(func, args, kwargs, wanted)
    device = _device_of(func, tensors)
    if wanted is not None and wanted.type == _TYPE:
        device = torch.device(_TYPE, wanted.index or 0)
        kwargs["device"] = torch.device("cpu")
    elif wanted is not None:
        device = None
    if device is None:
        return func(*_hosts(args), **_hosts(kwargs))
    result = _on(device, func(*_hosts(args), **_hosts(kwargs)))
    return return_and_correct_aliasing(func, args, kwargs, result) if _aliases(func) else result


def _copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: torch.device | None) -> Any:
    """Runs an operation that may copy between devices."""
    if func is _aten.copy_.default:
        target, *others = args
        func(*_hosts((target, *others)), **kwargs)
        return target
    device = args[0].device if wanted is None else wanted
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    result = func(*_hosts(args), **kwargs)
    return _on(torch.device(_TYPE, device.index or 0), result) if device.type == _TYPE else result


def _hosts(values: Any) -> Any:
    if isinstance(values, CheckedTensor):
        return values.host
    if isinstance(values, tuple | list):
        return type(values)(map(_hosts, values))
    if isinstance(values, dict):
        return {key: _hosts(value) for key, value in values.items()}
    return values


def _on(device: torch.device, values: Any) -> Any:
    if isinstance(values, CheckedTensor):
        return values
    if isinstance(values, Tensor):
        return CheckedTensor(values, device)
    return (
        type(values)(_on(device, value) for value in values) if isinstance(values, tuple | list) else values
    )


def _waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensors = _tensors(args, kwargs)
    if not any(isinstance(tensor, CheckedTensor) for tensor in tensors):
        return False
    if func is _aten.copy_.default:
        return not isinstance(args[0], CheckedTensor)
    if func is _aten._to_copy.default:
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu"
    if func in (_aten.index.Tensor, _aten.index_put_.default):
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    if func is _aten.repeat_interleave.Tensor:  # not if the caller knows the size of the result
        return kwargs.get("output_size") is None
    return func in _WAITS


_KERNELS = torch.library.Library("aten", "IMPL")


def register_checked_device() -> None:
    """Registers the type of the device, before the first backward pass: torch then starts its threads."""
    if torch._C._get_privateuse1_backend_name() != _TYPE:
        _setup_privateuseone_for_python_backend(_TYPE, _Module(), _Hooks(), _Guard())
        # An index that is a list becomes a tensor on the device without any mode being asked.
        _KERNELS.impl("empty_strided", _empty_strided, "PrivateUse1")
        _KERNELS.impl("_copy_from", _copy_from, "PrivateUse1")


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device, **_: object
) -> Tensor:
    return CheckedTensor(torch.empty_strided(size, stride, dtype=dtype), device)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    source, target = (_hosts(tensor) for tensor in (source, target))
    target.copy_(source)
    return target


@contextmanager
def checked_device(index: int = 0) -> Iterator[tuple[torch.device, Checks]]:
    """Yields a device and its checks; to be entered in each thread that uses the device.

    `register_checked_device` must have been called before the first backward pass of the process. Within it, a random generator of the device is one of the CPU, so numbers are those of a CPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", _HostGenerator)
        patch.setattr(torch, "tensor", _tensor)
        patch.setattr(torch._C, "_InferenceMode", _WithoutGradients)
        with Checks() as checks:
            yield torch.device(_TYPE, index), checks
