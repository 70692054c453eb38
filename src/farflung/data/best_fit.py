"""Best fit: which sequences share a row, so that few places of rows stay empty."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class OpenRows:
    """Rows that still have room, found by the room that they have.

    Parameters
    ----------
    length
        The places of a row.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._with_room: list[deque[int]] = [deque() for _ in range(length + 1)]
        self._rooms = 0  # bit r is set if a row has room for exactly r more
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, places: int) -> int | None:
        """The first row with the least room that has these places, which is closed; None if there is none."""
        fitting = self._rooms >> places
        return self._pop(places + (fitting & -fitting).bit_length() - 1) if fitting else None

    def take_fullest(self) -> int:
        """The row with the least room, which is closed; there must be one."""
        return self._pop((self._rooms & -self._rooms).bit_length() - 1)

    def put(self, row: int, room: int) -> None:
        """Open a row that has room for so many more."""
        self._with_room[room].append(row)
        self._rooms |= 1 << room
        self._count += 1

    def _pop(self, room: int) -> int:
        rows = self._with_room[room]
        row = rows.popleft()
        if not rows:
            self._rooms &= ~(1 << room)
        self._count -= 1
        return row


def best_fit_decreasing(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Which of the sequences share a row, each row's in ascending order; rows by their first sequence.

    Each sequence, the longest first and of equal ones the earlier first, goes to the fullest row that has
    room for it. That needs at most 11/9 of the fewest possible rows, and 4 more (Johnson, 1973).
    """
    rows: list[list[int]] = []
    used: list[int] = []
    open_rows = OpenRows(row_length)
    for number in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        row = open_rows.take(lengths[number])
        if row is None:
            row = len(rows)
            rows.append([])
            used.append(0)
        rows[row].append(number)
        used[row] += lengths[number]
        open_rows.put(row, row_length - used[row])
    return sorted(sorted(row) for row in rows)
