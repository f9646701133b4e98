from __future__ import annotations

import pytest

from rota.core.times import about


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3.0, "0 s"),
        (60.3, "60 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (3599.0, "1 h"),
        (71_980.9, "20 h"),
        (72_200.0, "20 h 3 min"),
        (172_799.0, "2 d"),
        (1_036_796.3, "12 d"),
        (1_045_000.0, "12 d 2 h"),
    ],
)
def test_how_long_as_people_say_it(seconds: float, words: str) -> None:
    assert about(seconds) == words
