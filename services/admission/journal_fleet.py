"""The journal's hosts and sessions: which incarnations there were, and who owns which session."""

from __future__ import annotations

from collections.abc import Sequence

from admission.journal_moves import NEXT_LOSS, MoveTables
from admission.journal_rows import SESSION_COLUMNS, HostRow, SessionRow, session_from_row

_SESSIONS = f"SELECT {', '.join(SESSION_COLUMNS)} FROM sessions"
_SESSION = f"{_SESSIONS} WHERE session_id = :session_id"
_ADOPT = (
    "INSERT INTO sessions (session_id, host_id, incarnation, epoch, lost, move_id, info) "
    "VALUES (:session_id, :host_id, :incarnation, :epoch, 0, '', :info) "
    "ON CONFLICT (session_id) DO UPDATE SET host_id = excluded.host_id, incarnation = excluded.incarnation, "
    "epoch = excluded.epoch, lost = 0, move_id = '', info = excluded.info"
)
_REGISTER = (
    "INSERT INTO hosts (host_id, incarnation, fenced, fence_reason, registration) "
    "VALUES (:host_id, :incarnation, 0, '', :registration) ON CONFLICT (host_id) DO UPDATE SET "
    "fenced = CASE WHEN excluded.incarnation > hosts.incarnation THEN 0 ELSE hosts.fenced END, "
    "incarnation = excluded.incarnation, registration = excluded.registration"
)
_FORGET = (
    "DELETE FROM sessions WHERE session_id = :session_id AND host_id = :host_id AND incarnation = :incarnation "
    "AND epoch = :epoch AND move_id = '' AND lost = 0"
)


class FleetTables(MoveTables):
    """Hosts and sessions."""

    # --- hosts

    def hosts(self) -> list[HostRow]:
        """All hosts that ever registered."""
        rows = self._rows("SELECT host_id, incarnation, fenced, registration FROM hosts")
        return [HostRow(host_id, incarnation, bool(fenced), blob) for host_id, incarnation, fenced, blob in rows]

    def register_host(self, host_id: str, incarnation: int, registration: bytes) -> list[str]:
        """Keep a registration; older incarnations are dead by it. Returns the sessions lost with them."""
        with self._transaction() as db:
            db.execute(_REGISTER, {"host_id": host_id, "incarnation": incarnation, "registration": registration})
            return self._lose(host_id, incarnation - 1)

    def fence_host(self, host_id: str, incarnation: int, reason: str) -> list[str]:
        """An operator's word that the incarnation is dead. Returns the sessions lost with it."""
        with self._transaction() as db:
            db.execute(
                "UPDATE hosts SET fenced = 1, fence_reason = :reason "
                "WHERE host_id = :host_id AND incarnation = :incarnation",
                # PostgreSQL keeps no NUL in a text.
                {
                    "reason": reason.replace("\0", "\N{REPLACEMENT CHARACTER}"),
                    "host_id": host_id,
                    "incarnation": incarnation,
                },
            )
            return self._lose(host_id, incarnation)

    def _lose(self, host_id: str, incarnation: int) -> list[str]:
        # Sessions in a move are the move's: its story decides.
        rows = self._db.execute(
            "SELECT session_id FROM sessions WHERE host_id = :host_id AND incarnation <= :incarnation "
            "AND move_id = '' AND lost = 0 ORDER BY session_id",
            {"host_id": host_id, "incarnation": incarnation},
        )
        ((first,),) = self._db.execute(NEXT_LOSS)
        lost = [session_id for (session_id,) in rows]
        self._db.many(
            "UPDATE sessions SET lost = :lost WHERE session_id = :session_id",
            [{"lost": first + number, "session_id": session_id} for number, session_id in enumerate(lost)],
        )
        return lost

    def forget_hosts(self, host_ids: Sequence[str]) -> list[str]:
        """Forget those hosts that have no session, lost or not, and are in no open move. Returns them."""
        with self._transaction() as db:
            needed = {host_id for (host_id,) in db.execute("SELECT DISTINCT host_id FROM sessions")}
            needed |= {host.host_id for move in self.open_moves() for host in (move.source, move.destination)}
            forgotten = [host_id for host_id in host_ids if host_id not in needed]
            db.many("DELETE FROM hosts WHERE host_id = :host_id", [{"host_id": host_id} for host_id in forgotten])
        return forgotten

    # --- sessions

    def session(self, session_id: str) -> SessionRow | None:
        """Who owns a session; None if it is not known."""
        rows = self._rows(_SESSION, {"session_id": session_id})
        return session_from_row(rows[0]) if rows else None

    def sessions_of(self, host_id: str) -> list[SessionRow]:
        """Sessions that live on a host."""
        rows = self._rows(f"{_SESSIONS} WHERE host_id = :host_id AND lost = 0", {"host_id": host_id})
        return [session_from_row(row) for row in rows]

    def adopt(self, rows: Sequence[SessionRow]) -> list[str]:
        """Keep sessions as their hosts report them. Returns those that are kept as they were.

        Nothing is adopted from a dead incarnation, over a move, over an epoch that is newer, over a loss of the same
        epoch, or over another host that owns the session.
        """
        with self._transaction() as db:
            found = self._rows_in(f"{_SESSIONS} WHERE session_id IN", [row.session_id for row in rows])
            known = {row.session_id: row for row in map(session_from_row, found)}
            claims = {(row.host_id, row.incarnation) for row in rows}
            dead = {claim for claim in claims if self._dead(*claim)}
            taken = [
                row
                for row in rows
                if (row.host_id, row.incarnation) not in dead and not _outdated(row, known.get(row.session_id))
            ]
            db.many(
                _ADOPT,
                [
                    {
                        "session_id": row.session_id,
                        "host_id": row.host_id,
                        "incarnation": row.incarnation,
                        "epoch": row.epoch,
                        "info": row.info,
                    }
                    for row in taken
                ],
            )
        adopted = {row.session_id for row in taken}
        return [row.session_id for row in rows if row.session_id not in adopted]

    def _dead(self, host_id: str, incarnation: int) -> bool:
        rows = self._rows(
            "SELECT 1 FROM hosts WHERE host_id = :host_id "
            "AND (incarnation > :incarnation OR (incarnation = :incarnation AND fenced = 1))",
            {"host_id": host_id, "incarnation": incarnation},
        )
        return bool(rows)

    def forget(self, rows: Sequence[SessionRow]) -> None:
        """Sessions that their own host no longer has: they were closed."""
        with self._transaction() as db:
            db.many(
                _FORGET,
                [
                    {
                        "session_id": row.session_id,
                        "host_id": row.host_id,
                        "incarnation": row.incarnation,
                        "epoch": row.epoch,
                    }
                    for row in rows
                ],
            )


def _outdated(claim: SessionRow, known: SessionRow | None) -> bool:
    """Whether what is known of a session outweighs what its host claims."""
    return known is not None and (
        bool(known.move_id)
        or known.epoch > claim.epoch
        or (known.lost and known.epoch == claim.epoch)
        or (not known.lost and known.host_id != claim.host_id)
    )
