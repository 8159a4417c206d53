"""What all tables of the journal stand on: fenced transactions, and reads that wait for nobody's disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from admission.journal_database import Cell, Connection, Row
from admission.leadership import Tenure, not_leader

# Names of one statement that takes a list: longer lists are asked for in parts, so that each text is compiled once.
_LISTED = tuple(f"item{number}" for number in range(100))


class Base:
    """The connections of one term. All methods may be called from any thread."""

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure
        self.term = tenure.term
        self._db = tenure.writer
        self._reader = tenure.reader
        self._fence = f"SELECT 1 FROM leadership WHERE term = :term{self._db.manners.share}"

    @contextmanager
    def _transaction(self, *, synced: bool = True) -> Iterator[Connection]:
        """All or nothing, and only while this term is the newest.

        `synced` False: it reaches the disk with the next one; for what admission would find out again.

        Raises:
            Unavailable: NOT_LEADER, a newer term has begun; JOURNAL_FAILED.
        """
        with self._db.transaction(synced=synced):
            if not self._db.execute(self._fence, {"term": self.term}):
                self.tenure.over.set()
                raise not_leader("", 1.0)
            yield self._db

    def _rows(self, sql: str, values: Mapping[str, Cell] | None = None) -> list[Row]:
        """The rows of a query: of the transaction that this thread is in, or of what is committed."""
        return (self._db if self._db.mine else self._reader).execute(sql, values)

    def _rows_in(self, sql: str, items: list[str]) -> list[Row]:
        """The rows of a query that ends with `IN`, for any number of items."""
        found: list[Row] = []
        names = ", ".join(f":{name}" for name in _LISTED)
        for first in range(0, len(items), len(_LISTED)):
            part = items[first : first + len(_LISTED)]
            filled = part + part[-1:] * (len(_LISTED) - len(part))
            found += self._rows(f"{sql} ({names})", dict(zip(_LISTED, filled, strict=True)))
        return found

    def close(self) -> None:
        """Close; whoever stands by may lead."""
        self.tenure.close()
