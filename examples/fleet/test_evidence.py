"""The measurement, compared with known cases and with a count of every window."""

import os
import random
from types import SimpleNamespace

import pytest
from evidence import SECOND, Recorder, allowed, most_in_any_window, read, rolling_count


def by_counting(starts, window):
    """Returns the result of counting every window that could matter."""
    times = {t for interval in starts for t in interval}
    begins = {t + shift for t in times for shift in (-window, -window + 1, -1, 0, 1)}
    return max((sum(s <= a and b < s + window for a, b in starts) for s in begins), default=0)


def test_no_starts_give_zero():
    assert most_in_any_window([], 10) == 0


def test_points_in_one_window_are_counted():
    assert most_in_any_window([(t, t) for t in range(5)], 10) == 5
    assert most_in_any_window([(t, t) for t in range(6)], 10) == 6


def test_the_window_is_half_open():
    assert most_in_any_window([(0, 0), (10, 10)], 10) == 1
    assert most_in_any_window([(0, 0), (9, 9)], 10) == 2


def test_touching_intervals_share_a_window_if_all_of_them_fit():
    touching = [(0, 3), (3, 6), (6, 9)]
    assert most_in_any_window(touching, 10) == 3
    assert most_in_any_window(touching, 9) == 2


def test_an_interval_that_reaches_out_of_the_window_does_not_count():
    assert most_in_any_window([(0, 1), (1, 2), (2, 10)], 10) == 2
    assert most_in_any_window([(0, 10)], 10) == 0
    assert most_in_any_window([(0, 100)], 10) == 0


def test_starts_at_the_same_moment_all_count():
    assert most_in_any_window([(5, 6)] * 7, 10) == 7


@pytest.mark.parametrize("seed", range(300))
def test_the_measure_equals_counting(seed):
    chance = random.Random(seed)
    window = chance.randint(1, 12)
    starts = []
    for _ in range(chance.randint(0, 12)):
        a = chance.randint(0, 30)
        starts.append((a, a + chance.choice((0, 0, 1, 3, 15))))
    assert most_in_any_window(starts, window) == by_counting(starts, window)
    assert max((count for _, count in rolling_count(starts, window)), default=0) == by_counting(starts, window)


def test_a_step_down_comes_before_a_step_up_at_the_same_time():
    assert rolling_count([(0, 0), (10, 10)], 10) == [(0, 1), (10, 0), (10, 1), (20, 0)]


def test_allowed_starts_of_a_span():
    assert allowed(20, 2 * SECOND, 1) == 20
    assert allowed(20, 2 * SECOND, 2 * SECOND) == 20
    assert allowed(20, 2 * SECOND, 2 * SECOND + 1) == 40
    assert allowed(20, 2 * SECOND, 13 * SECOND) == 140


def test_recorded_starts_are_read_back(tmp_path):
    recorder = Recorder(tmp_path, "some-member")
    recorder.start(17, SimpleNamespace(ready_at_monotonic=None))
    recorder.start(17, SimpleNamespace(ready_at_monotonic=0.25))
    (tmp_path / "other-1.log").write_text("1 2\n")
    first, second, third = read(tmp_path)
    assert first == (1, 2, "other")
    assert second[::2] == (17, "some-member") and second.b > 17
    assert third[::2] == (SECOND // 4, "some-member") and third.b >= second.b
    assert (tmp_path / f"some-member-{os.getpid()}.log").exists()
