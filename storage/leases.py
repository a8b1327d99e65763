"""Leases: at most one process at a time runs a job for a date, or changes a small file, on any store.

A process that requests a lease creates a ticket, which is a file with a unique name. Then it lists the
tickets of the lease. It holds the lease if there is no other ticket. If two processes request the lease at
the same time, the process that lists later finds both tickets. The reason is that all stores list a file as
soon as it exists. So at most one process holds the lease. This needs no conditional write, which pyarrow's
client for S3 does not have. If several processes request a free lease, the process whose ticket has the first
name waits. Each of the other processes deletes its ticket and tries again.

The holder renews its ticket. A ticket that was not renewed for a while counts as absent. The age of a ticket
is the difference of two times that the store has written, so the clocks of machines need not agree. If the
holder has ended, processes on its machine ignore its ticket immediately. If it still runs there, the ticket
may look old only because the clock was set forward, or because the machine was suspended. So a process on the
same machine first watches the ticket for a while, and ignores it only if it is not renewed meanwhile.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import DataError, InfrastructureError
from storage import file_io
from storage.paths import LakePaths

log = logging.getLogger("nightrank.lease")

HEARTBEAT_S = 20.0
EXPIRES_S = 120.0
# For so many seconds, this process watches an old ticket of a running process of this machine. It ignores the
# ticket only if the other process does not renew it meanwhile.
_WATCH_S = 2.5 * HEARTBEAT_S
# If several processes request a lease at the same time, one of them must hold it within this time.
_SETTLE_S = 20.0
_POLL_S = 1.0
_TURN_S = 0.05
# Seconds after which an unreadable ticket is read again.
_READ_AGAIN_S = 0.05


@dataclass(frozen=True)
class Owner:
    """The process that requests a lease or holds it.

    Attributes:
        host: the host name of its machine.
        pid: its process id.
        started: when it started, in clock ticks since the boot of its machine.
        machine: a string that identifies the boot of its machine, and its process namespace.
        since: when it requested the lease, by the clock of its machine, in UTC.
        holds: whether it holds the lease. False while it requests the lease.
    """

    host: str
    pid: int
    started: int
    machine: str
    since: str
    holds: bool = False

    @property
    def is_here(self) -> bool:
        """Returns whether the process belongs to this machine and process namespace."""
        return self.machine == _machine() != ""

    @property
    def is_dead(self) -> bool:
        """Returns whether the process has ended; False if it belongs to another machine."""
        return self.is_here and _start_of(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class _Ticket:
    """A ticket that another process has created.

    Attributes:
        name: the name of its file in the folder of the lease.
        owner: the process that created it.
        age_s: seconds since it was renewed, according to the store's clock.
    """

    name: str
    owner: Owner
    age_s: float

    @property
    def is_watched(self) -> bool:
        """Returns whether the ticket looks expired, but its running process may still renew it."""
        return self.age_s > EXPIRES_S


@contextmanager
def lease(
    lake: LakePaths,
    date: str,
    job: str,
    config: str,
    wait_s: float = 0.0,
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Holds the lease of a job, a configuration and a date of a lake for a block of code.

    Args:
        lake: the lake.
        date: the ISO date.
        job: the name of the job, without a dot.
        config: the name of the configuration.
        wait_s: seconds to wait while another process holds the lease.
        check: a function that is called about once a second while this process waits. If it raises an error,
            this process does not wait any longer.

    Raises:
        InfrastructureError: another process holds the lease, or a ticket cannot be written.
    """
    held = _Lease(f"{lake.leases}/dt={date}", f"{job}.{config}", f"{job} of {config} for {date}")
    held.acquire(wait_s, check)
    try:
        yield
    finally:
        held.release()


class _Lease:
    """A lease of this process.

    Args:
        folder: the folder of the tickets.
        key: the beginning of the names of the lease's tickets.
        what: a text for messages that says what the owner of the lease does.
    """

    def __init__(self, folder: str, key: str, what: str) -> None:
        self._folder = folder
        self._key = key
        self._what = what
        self._name = f"{key}.{uuid.uuid4().hex}.json"
        self._path = f"{folder}/{self._name}"
        self._owner = Owner(socket.gethostname(), os.getpid(), _start_of(os.getpid()), _machine(), "")
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None
        # Maps the name of each other process's ticket to the ticket's time of modification, and to the time
        # when this process first read it.
        self._watched: dict[str, tuple[Any, float]] = {}

    def acquire(self, wait_s: float, check: Callable[[], None]) -> None:
        """Waits until this process holds the lease.

        Raises:
            InfrastructureError: another process still holds the lease after `wait_s` seconds.
        """
        start, announced, turn_s = time.monotonic(), False, _TURN_S
        while (other := self._attempt()) is not None:
            waited = time.monotonic() - start
            limit_s = max(wait_s, _WATCH_S + _SETTLE_S) if other.is_watched else wait_s
            if waited >= (limit_s if other.owner.holds else max(limit_s, _SETTLE_S)):
                raise self._refusal(other)
            if other.owner.holds and not announced:
                log.info("%s is being done by %s; waiting up to %g s", self._what, other.owner, limit_s)
                announced = True
            check()
            # The pauses increase, so that one of many waiting processes eventually finds no other ticket.
            time.sleep(min(turn_s, max(limit_s - waited, _TURN_S)) * random.uniform(0.5, 1.0))
            turn_s = min(2 * turn_s, _POLL_S)
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def release(self) -> None:
        """Ends the lease."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        try:
            self._withdraw()
        except OSError as error:
            log.warning(
                "the lease file %s cannot be deleted, so the lease stays valid until it expires: %s",
                self._path,
                error,
            )

    def _attempt(self) -> _Ticket | None:
        """Creates a ticket.

        Returns None if this process now holds the lease. Otherwise this function deletes its ticket again,
        and returns the ticket of another process.
        """
        self._write(holds=False)
        try:
            deadline = time.monotonic() + _SETTLE_S
            while others := self._others():
                first = next((one for one in others if one.owner.holds), others[0])
                if first.owner.holds or first.name < self._name or time.monotonic() > deadline:
                    self._withdraw()
                    return first
                time.sleep(_TURN_S)  # meanwhile, other processes find this ticket and delete theirs
            self._write(holds=True)
        except BaseException:
            with suppress(OSError):
                self._withdraw()
            raise
        return None

    def _write(self, *, holds: bool) -> None:
        """Writes this process's ticket: the file by which it requests the lease or (`holds`) holds it."""
        values = {**asdict(self._owner), "since": file_io.utc_now(), "holds": holds}
        file_io.replace_json(self._path, values)

    def _withdraw(self) -> None:
        """Deletes this process's ticket, and then each of the two folders above it that is empty."""
        file_io.delete_if_present(self._path)
        for folder in (self._folder, self._folder.rpartition("/")[0]):
            file_io.delete_empty_folder(folder)

    def _others(self) -> list[_Ticket]:
        """Returns the valid tickets of other processes, sorted by name, and deletes their expired tickets.

        Raises:
            InfrastructureError: another process has deleted this process's ticket, because it had expired.
        """
        infos = [
            info
            for info in file_io.list_files(self._folder)
            if info.is_file and info.base_name.rsplit(".", 2)[0] == self._key
        ]
        now = next((info.mtime for info in infos if info.base_name == self._name), None)
        if now is None:
            raise InfrastructureError(
                f"the lease of {self._what} was lost, because its file {self._path} was deleted",
                "run the job again",
            )
        tickets = []
        for info in infos:
            if info.base_name == self._name or info.mtime is None:
                continue
            path = f"{self._folder}/{info.base_name}"
            age_s = (now - info.mtime).total_seconds()
            owner = _read(path)
            if owner is None:
                continue
            may_renew = owner.is_here and self._unchanged_s(info) < _WATCH_S
            if owner.is_dead or (age_s > EXPIRES_S and not may_renew):
                log.warning(
                    "the lease of %s by %s has expired, or its process has ended: "
                    "this process may take it over",
                    self._what,
                    owner,
                )
                with suppress(OSError):
                    file_io.delete_if_present(path)
                continue
            tickets.append(_Ticket(info.base_name, owner, age_s))
        return tickets

    def _unchanged_s(self, info: Any) -> float:
        """Returns for how many seconds this process has watched a ticket that was not renewed meanwhile.

        Python measures these seconds with a clock that is never set.
        """
        now_s = time.monotonic()
        mtime, since_s = self._watched.get(info.base_name, (None, now_s))
        if mtime != info.mtime:
            since_s = now_s
        self._watched[info.base_name] = (info.mtime, since_s)
        return now_s - since_s

    def _refusal(self, other: _Ticket) -> InfrastructureError:
        ends = EXPIRES_S - other.age_s
        return InfrastructureError(
            f"{self._what} is being done by {other.owner}, and must not run twice at the same time",
            "wait until that process has ended, then run the job again, or pass --wait SECONDS. If that "
            f"process was killed on another machine, its lease expires in {max(ends, 0):.0f} s",
        )

    def _renew(self) -> None:
        """Renews the ticket regularly, until the lease ends."""
        while not self._ended.wait(HEARTBEAT_S):
            try:
                if not self._touch():
                    log.error("the lease of %s was lost, because it was not renewed in time", self._what)
                    return
            except (OSError, InfrastructureError) as error:
                log.warning("the lease file %s cannot be renewed: %s", self._path, error)

    def _touch(self) -> bool:
        """Sets the ticket's time of modification to the current time.

        If the ticket no longer exists, the function does not create it, and returns False.
        """
        try:
            if file_io.is_local(self._path):
                os.utime(file_io.filesystem(self._path)[1])
            else:
                file_io.replace_text(self._path, file_io.read_text(self._path))
        except OSError:
            if file_io.exists(self._path):
                raise
            return False
        return True


def _read(path: str) -> Owner | None:
    """Returns the owner in a ticket; None if the ticket does not exist any more.

    A process that requests a lease deletes its ticket and creates it again under the same name, and replaces
    its content when it gets the lease. So if a read fails, the next read of the same ticket may succeed. A
    damaged ticket is valid until it expires, because the process that wrote it may still run.
    """
    for last in (False, False, True):
        try:
            values: Any = file_io.read_json(path)
            owner = Owner(**values)
            _ = (owner.pid + 0, owner.started + 0, bool(owner.holds))
            return owner
        except FileNotFoundError:
            return None
        except OSError:
            if not file_io.exists(path):
                return (
                    None  # pyarrow's client for S3 raises other errors if the file is deleted during the read
                )
            if last:
                raise
        except (DataError, TypeError) as error:
            if last:
                log.warning("the ticket %s is damaged: %s", path, error)
        time.sleep(_READ_AGAIN_S)
    return Owner("an unknown machine", 0, 0, "", "an unknown time", holds=True)


@cache
def _machine() -> str:
    """Returns a string that identifies this boot of the machine and the process namespace, or ''."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> int:
    """Returns the start of a process, in clock ticks since the boot of its machine; 0 without such a process.

    The start is the 22nd value of the process's stat file (see proc(5)). The second value is a name, which
    may contain spaces.
    """
    try:
        values = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except OSError:
        return 0
    state, *rest = values.split()
    return 0 if state in "ZX" else int(rest[18])
