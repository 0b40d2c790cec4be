"""What kernels touch in Triton's interpreter, which reads and writes any address it is given: watched, and kept to the tensors.

An address outside of a kernel's tensors is an `OutOfReach` at the kernel's line, where it would be the end of the process.
`observed` hands every load and store on, to whoever draws them. kit.gpu starts the watch; compiled kernels know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

Observer = Callable[[tuple[int, int, int], str, Any], None]


class OutOfReach(IndexError):
    """A kernel has loaded or stored outside of its tensors."""


_tensors: dict[
    str, tuple[int, int]
] = {}  # those of the kernel that was launched last: first address, and that behind the last
_observers: list[Observer] = []


def launched(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Remember where a kernel's tensors lie, with all memory that they are views of."""
    _tensors.clear()
    for name, value in {**dict(zip(names, args)), **kwargs}.items():
        if hasattr(value, "untyped_storage"):
            storage = value.untyped_storage()
            _tensors[name] = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Within it, `observer(program, "load" or "store", addresses)` is called for each one; program: its three numbers.

    addresses: a NumPy array of uint64. Those of a tensor begin at its `data_ptr()`.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def watch() -> None:
    """Put the check in front of the interpreter's loads and stores. Once."""
    builder = import_module("triton.runtime.interpreter").InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        mask = _as_bool(mask)
        _check(self, "load", pointers, mask)
        return load(self, pointers, mask, *rest, **more)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        mask = _as_bool(mask)
        _check(self, "store", pointers, mask)
        return store(self, pointers, value, mask, *rest, **more)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store


def _as_bool(mask: Any) -> Any:
    """A mask as a load takes it. `lanes & condition`, a tile and a scalar, is int32 in the interpreter; the compiler takes it too."""
    return mask if mask.data.dtype == bool else type(mask)(mask.data.astype(bool), mask.dtype)


def _check(builder: Any, kind: str, pointers: Any, mask: Any) -> None:
    addresses = pointers.data[mask.data]
    if not addresses.size:
        return
    for observer in _observers:
        observer(builder.grid_idx, kind, addresses)
    outside = None
    for first, behind in _tensors.values():
        inside = (addresses >= first) & (addresses < behind)
        outside = ~inside if outside is None else outside & ~inside
        if not outside.any():
            return
    if outside is not None:
        raise OutOfReach(_told(builder.grid_idx, kind, [int(address) for address in addresses[outside]]))


def _told(program: tuple[int, int, int], kind: str, addresses: list[int]) -> str:
    def distance(name: str, address: int) -> int:
        first, behind = _tensors[name]
        return first - address if address < first else address - behind + 1

    address, name = min(((a, n) for a in addresses for n in _tensors), key=lambda pair: distance(pair[1], pair[0]))
    side = "before" if address < _tensors[name][0] else "behind"
    return (
        f"program {program} {kind}s outside of its tensors, the nearest is {distance(name, address):,} bytes {side} {name}: mask what "
        "is not there, and make a block or slot int64 before it is multiplied"
    )
