"""Who leads: one admission process decides at a time, under a term of its own that fences every write.

On SQLite a process leads because it holds the file. On PostgreSQL it leads for as long as it renews its seat, one row:

- The seat is taken by compare-and-set on everything that was seen of it, so two can never take it at once. Taking it
  raises the term.
- A process that stands by takes the seat of a holder whose beat has not changed for `lease_s` on its own clock. No two
  machines' clocks are compared.
- A holder counts its lease from before it renewed, and stops leading by itself `_GIVE_UP` into it: before anyone else
  can have begun.
- Whoever stalls and wakes after that finds, in the same transaction as anything it wants to write, that its term is not
  the newest one, and writes nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from admission.journal_database import Connection, PostgresUrl, failed, open_postgres
from admission.journal_file import JournalFile
from admission.journal_migrations import migrate, version_of
from worldline import telemetry
from worldline.errors import Unavailable, WorldlineError

# Parts of the lease: how often it is renewed, how often others look, and when a holder that could not renew gives up.
_RENEW, _LOOK, _GIVE_UP = 1 / 6, 1 / 12, 3 / 4
# One number for all that take or change the seat of one database.
_ADVISORY_KEY = 0x776F726C64  # "world"


def boot_s() -> float:
    """Seconds since the machine booted. They go on while a process is stopped, or its machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def not_leader(address: str, retry_after_s: float) -> Unavailable:
    """The answer of a process that does not lead; `address` is who does, "" if nobody is known to."""
    where = f"{address} leads: ask there" if address else "nobody is known to lead: ask again"
    return Unavailable(
        f"this admission process does not lead; {where}",
        reason="NOT_LEADER",
        numbers={"leader": address},
        retry_after_s=retry_after_s,
        resource=("admission", address),
    )


class Tenure:
    """One term of this process, and the connections that write and read under it.

    `over` is set for good once the term has ended.
    """

    def __init__(self, term: int, writer: Connection, reader: Connection, close: Callable[[], None]) -> None:
        self.term = term
        self.writer, self.reader = writer, reader
        self.over = threading.Event()
        self._close = close

    def require(self) -> None:
        """Raises Unavailable (NOT_LEADER) if this process leads no more, or may not by now."""
        if self.over.is_set():
            raise not_leader("", 1.0)

    def checkpoint(self) -> None:
        """Keep a journal file's log short, where there is one."""

    def settle(self) -> None:
        """Put what was written without a sync on the disk now; a server does that by itself."""

    def close(self) -> None:
        """Give the seat back, and close the connections."""
        self.over.set()
        self._close()


class Alone(Tenure):
    """A term on a journal file: nobody else can begin one while its lock is held."""

    def __init__(self, term: int, file: JournalFile) -> None:
        super().__init__(term, file.writer, file.reader, file.close)
        self._file = file

    def checkpoint(self) -> None:
        self._file.checkpoint()

    def settle(self) -> None:
        self._file.settle()


def hold_file(path: Path) -> Tenure:
    """Lead alone, with a journal file.

    Raises:
        Unavailable: JOURNAL_HELD, JOURNAL_FAILED. Precondition: JOURNAL_NEWER.
    """
    file = JournalFile(path)
    try:
        with file.writer.transaction():
            migrate(file.writer)
            rows = file.writer.execute("UPDATE leadership SET term = term + 1 RETURNING term")
    except WorldlineError as error:
        file.close()
        if error.reason == "JOURNAL_FAILED":
            raise failed(f"the journal {path} cannot be opened: {error.message}") from None
        raise
    return Alone(int(rows[0][0]), file)


@dataclass(frozen=True, slots=True)
class Seat:
    """What a look finds: whose term it is, where they are asked, and their beat."""

    term: int
    holder: str
    address: str
    beat: int


class Leased(Tenure):
    """A term on PostgreSQL, renewed by a thread of its own."""

    def __init__(
        self, term: int, writer: Connection, reader: Connection, seat: Connection, lease_s: float, taken_s: float
    ) -> None:
        super().__init__(term, writer, reader, self._leave)
        self._seat = seat
        self._lease_s = lease_s
        self._until_s = taken_s + _GIVE_UP * lease_s
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        if self.over.is_set() or boot_s() >= self._until_s:
            raise not_leader("", self._lease_s)

    def _renew(self) -> None:
        why = ""
        while not why:
            if self.over.wait(_RENEW * self._lease_s):
                return
            why = self._renewed_once()
        self.over.set()
        telemetry.log("leadership").warning("term ended", term=self.term, why=why)

    def _renewed_once(self) -> str:
        """Why the term is over, "" if it goes on."""
        began_s, missed = boot_s(), ""
        try:
            if not self._seat.change("UPDATE leadership SET beat = beat + 1 WHERE term = :term", {"term": self.term}):
                return "another process has a newer term"
        except Unavailable as error:
            missed = error.message
        if self.writer.broken or self._seat.broken:
            return f"a connection to the journal was lost: {missed or 'the one that writes'}"
        if boot_s() >= self._until_s:
            return f"it was not renewed for {_GIVE_UP * self._lease_s:g} s: {missed or 'this process was stopped'}"
        if not missed:
            self._until_s = began_s + _GIVE_UP * self._lease_s
        return ""

    def _leave(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(self._lease_s)
        with suppress(Unavailable):
            self._seat.change(
                "UPDATE leadership SET holder = '', address = '', beat = beat + 1 WHERE term = :term",
                {"term": self.term},
            )
        for connection in (self._seat, self.writer, self.reader):
            connection.close()


class Candidate:
    """Stands for the seat of a journal on PostgreSQL."""

    def __init__(self, where: PostgresUrl, lease_s: float, address: str) -> None:
        """`address`: where this process is asked when it leads, host:port."""
        self._where = where
        self._lease_s = lease_s
        self._address = address
        self._holder = uuid.uuid4().hex
        self._leader = ""
        self._log = telemetry.log("leadership")

    @property
    def leader(self) -> str:
        """Where whoever leads is asked; "" if nobody is known to."""
        return self._leader

    def stand(self, stopped: threading.Event, looked: Callable[[], None]) -> Tenure | None:
        """Wait until this process leads; None once `stopped`. `looked` is called after each look at the seat.

        Raises:
            Unavailable: JOURNAL_FAILED. Precondition: JOURNAL_NEWER.
        """
        connection = open_postgres(self._where, self._lease_s)
        try:
            seen, since_s = self._look(connection), boot_s()
            while not stopped.is_set():
                free = seen is None or not seen.holder
                if free or boot_s() - since_s >= self._lease_s:
                    tenure = self._take(connection, seen)
                    if tenure is not None:
                        self._leader = self._address
                        return tenure
                self._leader = seen.address if seen else ""
                looked()
                stopped.wait(_LOOK * self._lease_s)
                found = self._look(connection)
                if found != seen:
                    seen, since_s = found, boot_s()
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    @staticmethod
    def _look(connection: Connection) -> Seat | None:
        if version_of(connection) == 0:
            return None
        rows = connection.execute("SELECT term, holder, address, beat FROM leadership")
        return Seat(*rows[0])

    def _take(self, connection: Connection, seen: Seat | None) -> Tenure | None:
        """The seat, if it is still as it was seen."""
        taken_s = boot_s()
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(:key)", {"key": _ADVISORY_KEY})
                if seen is None:
                    migrate(connection)
                    seen = Seat(0, "", "", 0)
                rows = connection.execute(
                    "UPDATE leadership SET term = term + 1, holder = :me, address = :address, beat = 0 "
                    "WHERE term = :term AND holder = :holder AND beat = :beat RETURNING term",
                    {
                        "me": self._holder,
                        "address": self._address,
                        "term": seen.term,
                        "holder": seen.holder,
                        "beat": seen.beat,
                    },
                )
                if rows:
                    # The one before can write no more: its tables may change.
                    migrate(connection)
        except Unavailable as error:
            if connection.broken:
                raise
            # Whoever led has stopped within a transaction, which its server ends soon.
            self._log.warning("the seat could not be taken yet", why=error.message)
            return None
        if not rows:
            return None
        term = int(rows[0][0])
        self._log.info("leads", term=term, before=seen.address)
        writer = open_postgres(self._where, self._lease_s)
        try:
            reader = open_postgres(self._where, self._lease_s)
        except BaseException:
            writer.close()
            raise
        return Leased(term, writer, reader, connection, self._lease_s, taken_s)
