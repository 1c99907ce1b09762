"""The tests' own parser refuses fields that are not lists of strings with parameters."""

import pytest
from servers import structured


def test_lists():
    assert structured('"a";q=100;w=60, "b\\"c";r=0') == [("a", {"q": 100, "w": 60}), ('b"c', {"r": 0})]
    assert structured('"a";q=5;qu="concurrent-requests"') == [("a", {"q": 5, "qu": "concurrent-requests"})]


@pytest.mark.parametrize(
    "field",
    [
        "",
        "a;q=1",
        '"a";q=1,',
        '"a";q=1.5',
        '"a" ;q=1',
        '"a";Q=1',
        '"a";q=',
        '"a";q',
        '"é";q=1',
        '"a"q=1',
        '"a";q=1, "a";q=2',
    ],
)
def test_parts_without_a_limit_are_omitted(field):
    with pytest.raises((AssertionError, IndexError)):
        structured(field)
