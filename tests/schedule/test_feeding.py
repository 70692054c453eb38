from __future__ import annotations

from farflung.schedule import WINDOWS_AHEAD, Feeding


def feed(feeding: Feeding) -> list[tuple[int, int]]:
    """Feed until nobody has room."""
    turns = []
    while (turn := feeding.next()) is not None:
        feeding.fed()
        turns.append(turn)
    return turns


def test_segments_take_turns_until_one_has_no_room() -> None:
    feeding = Feeding([0, 3], window=1)
    assert feed(feeding) == [(0, 0), (3, 0), (0, 1), (3, 1)]
    feeding.finished(3)
    assert feed(feeding) == []
    feeding.finished(0)
    assert feed(feeding) == [(0, 2), (3, 2)]


def test_two_windows_are_ahead_of_what_is_finished() -> None:
    feeding = Feeding([0], window=3)
    assert len(feed(feeding)) == WINDOWS_AHEAD * 3
    feeding.finished(0)
    feeding.finished(0)
    assert feed(feeding) == [(0, 6), (0, 7)]


def test_where_no_segment_is_fed_nothing_is() -> None:
    assert feed(Feeding([], window=1)) == []
